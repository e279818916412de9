#!/bin/bash
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$ranks_per_node
#SBATCH --cpus-per-task=$cores_per_rank
#SBATCH --exclusive
#SBATCH --time=$time
#SBATCH --output=$name.%j.log
$directives
$comment
# srun is told --cpus-per-task again: since Slurm 22.05 it does not inherit it. One thread per core,
# because a core's second hardware thread is no second core.

set -euo pipefail

$setup
$environment

$launch \
    $command
