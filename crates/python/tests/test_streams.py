"""What the module tells a driver of CUDA and PyTorch, of which neither is there: order, memory and devices."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PRETEND = Path(__file__).parent / "pretend"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the driver that stands in")
@pytest.mark.parametrize("torch", ["older", "newer"])
def test_streams_memory_and_devices(tmp_path, torch):
    library = tmp_path / "libcuda.so.1"
    options = ["-shared", "-fPIC", "-Wno-implicit-function-declaration"]
    subprocess.run(["cc", *options, "-o", library, PRETEND / "driver.c"], check=True)
    tmp_path.joinpath("libcuda.so").symlink_to(library)
    # Without a compiler of kernels, they are what is in the module.
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "FLASH_LADDER_NVRTC": str(tmp_path)}
    subprocess.run([sys.executable, PRETEND / "calls.py", torch], env=environment, check=True)
