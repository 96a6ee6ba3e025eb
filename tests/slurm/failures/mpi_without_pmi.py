"""MPI_Init in a process that srun started, of an Open MPI that was built without the PMI of Slurm."""

import ctypes

import startup

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
size = ctypes.c_int()
mpi.MPI_Comm_size(ctypes.byref(ctypes.c_int.in_dll(mpi, "ompi_mpi_comm_world")), ctypes.byref(size))
assert size.value > 1, f"MPI has {size.value} rank"
