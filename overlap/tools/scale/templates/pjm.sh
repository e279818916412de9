#!/bin/bash
#PJM -N $name
#PJM -L "node=$nodes"
#PJM -L "elapse=$time"
#PJM --mpi "proc=$ranks"
#PJM --mpi "max-proc-per-node=$ranks_per_node"
#PJM -j
$directives
$comment

set -euo pipefail
cd "$$PJM_O_WORKDIR"

$setup
$environment

$launch \
    $command
