"""Who waits for a device that another tuner has."""

from __future__ import annotations

import uuid

import pytest

from tvm_edge.tuning.device_lock import DeviceLock


def test_who_waits_for_a_device_can_be_interrupted(caplog: pytest.LogCaptureFixture) -> None:
    def twice() -> None:
        if caplog.records:
            raise KeyboardInterrupt

    key = f"made/{uuid.uuid4()}"
    with (
        caplog.at_level("WARNING", "tvm_edge.tuning"),
        DeviceLock(key)(),
        pytest.raises(KeyboardInterrupt),
        DeviceLock(key, twice)(),
    ):
        pass
    assert "another process tunes" in caplog.text
