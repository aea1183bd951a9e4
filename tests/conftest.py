import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small tensors gain nothing from a second thread, and wait for it when the machine is busy."""
    torch.set_num_threads(1)
