"""`precision=auto`: bf16 only where the matrix products run in hardware."""

from __future__ import annotations

import os
import subprocess
import sys
from unittest import mock

import pytest
import torch

from robolearn.learners.precision import choose_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(("amx", "avx512", "library", "chosen"), [
    (True, False, True, "bf16"),
    (False, True, True, "bf16"),
    (False, False, True, "fp32"),  # the library would emulate it
    (True, True, False, "fp32"),  # ONEDNN_MAX_CPU_ISA keeps the library from what the processor has
])  # fmt: skip
def test_auto_is_bf16_where_the_processor_and_the_library_multiply_it(amx, avx512, library, chosen):
    with (
        mock.patch.object(torch.cpu, "_is_amx_tile_supported", return_value=amx),
        mock.patch.object(torch.cpu, "_is_avx512_bf16_supported", return_value=avx512),
        mock.patch("robolearn.learners.precision.library_has_bf16", return_value=library),
    ):
        assert choose_precision("auto", CPU) == chosen
        assert choose_precision("bf16", CPU) == "bf16"


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"])
def test_auto_is_fp32_for_a_process_that_is_limited_to_avx2(name):
    value = "avx2" if name.startswith("ATEN") else "AVX2"
    code = (
        "import torch; from robolearn.learners.precision import choose_precision; "
        "print(choose_precision('auto', torch.device('cpu')))"
    )
    environment = {**os.environ, name: value}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-1] == "fp32"
