#!/bin/bash
#PBS -N $name
#PBS -l select=$nodes:ncpus=$cores_per_node:mpiprocs=$ranks_per_node:ompthreads=1
#PBS -l place=scatter:excl
#PBS -l walltime=$time
#PBS -j oe
$directives
$comment

set -euo pipefail
cd "$$PBS_O_WORKDIR"

$setup
$environment

$launch \
    $command
