"""`NCFile`, which is not supported."""

from __future__ import annotations

from typing import Any

from .file_base import FileBase


class NCFile(FileBase):
    """Files by netCDF4, which are not supported; see `overlap.DistArray.save` for what netCDF-4 readers open."""

    def __init__(self, ncname: str, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"NCFile is not supported by overlap.compat.mpi4py_fft, received {ncname!r}: use "
            "HDF5File, or overlap.DistArray.save, whose files have netCDF-4's named axes"
        )

    @staticmethod
    def backend() -> str:
        return "netcdf4"
