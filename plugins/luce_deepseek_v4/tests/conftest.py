"""Makes and loads models for the tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Parallel test processes share two cores; more threads would only wait for each other."""
    torch.set_num_threads(1)
