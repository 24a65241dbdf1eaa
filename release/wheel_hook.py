"""Puts compiled kernels into the wheel, which is then for one kind of machine: `make wheel` has them made before."""

import os
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Kernels(BuildHookInterface):
    """Without the folder that `TAGMATCH_KERNELS` names, the wheel has Python alone."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Add the folder, and say which Python and which machines the wheel is for."""
        if folder := os.environ.get("TAGMATCH_KERNELS"):
            build_data["force_include"][folder] = "tagmatch/compiled"
            build_data["pure_python"] = False
            build_data["tag"] = f"cp{sys.version_info[0]}{sys.version_info[1]}-none-manylinux_2_17_x86_64"
