"""NVIDIA driver detection, against stand-ins for libcuda."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from gpuexec.devices.cuda import driver
from gpuexec.devices.cuda.driver import Driver, DriverDevice, probe

SCRIPT = Path(driver.__file__)
H200 = ("NVIDIA H200", (9, 0))
T4 = ("Tesla T4", (7, 5))


class FakeLibrary:
    """Answers as libcuda does: by writing through the references it is given."""

    def __init__(self, version: int, devices: tuple[tuple[str, tuple[int, int]], ...] = (H200,), init: int = 0) -> None:
        self.version, self.devices, self.init = version, devices, init

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return self.init

    def cuDriverGetVersion(self, version: object) -> int:
        return _write(version, self.version)

    def cuDeviceGetCount(self, count: object) -> int:
        return _write(count, len(self.devices))

    def cuDeviceGet(self, device: object, ordinal: int) -> int:
        return _write(device, ordinal)

    def cuDeviceGetName(self, name: ctypes.Array[ctypes.c_char], length: int, device: ctypes.c_int) -> int:
        name.value = self.devices[device.value][0].encode()[: length - 1]
        return 0

    def cuDeviceGetAttribute(self, value: object, attribute: int, device: ctypes.c_int) -> int:
        return _write(value, self.devices[device.value][1][{75: 0, 76: 1}[attribute]])


def _write(reference: object, value: int) -> int:
    ctypes.cast(reference, ctypes.POINTER(ctypes.c_int))[0] = value  # type: ignore[arg-type]
    return 0


@pytest.mark.parametrize(
    ("version", "extra"), [(13020, "cuda13"), (13000, "cuda13"), (12999, "cuda12"), (12000, "cuda12"), (11080, "")]
)
def test_extra_follows_the_cuda_of_the_driver(version: int, extra: str) -> None:
    assert probe(FakeLibrary(version)).extra == extra


def test_probe_describes_every_device() -> None:
    found = probe(FakeLibrary(13000, (H200, T4)))
    assert found == Driver(True, 13000, (DriverDevice(*H200), DriverDevice(*T4)), "")
    assert str(found) == "NVIDIA driver for CUDA 13.0: NVIDIA H200 (sm_90), Tesla T4 (sm_75)"


def test_driver_without_devices_is_found_and_gets_no_extra() -> None:
    found = probe(FakeLibrary(13000, init=100))
    assert (found.found, found.version, found.devices, found.extra) == (True, 13000, (), "")
    assert "shows no GPU" in str(found)


def test_driver_that_does_not_start_says_its_status() -> None:
    found = probe(FakeLibrary(13000, init=999))
    assert (found.found, found.extra) == (False, "")
    assert "cuInit returned 999" in found.reason


def test_old_driver_is_refused_in_words() -> None:
    found = probe(FakeLibrary(11080))
    assert found.devices == (DriverDevice(*H200),)
    assert "too old" in str(found)


def test_library_without_the_calls_is_no_driver() -> None:
    found = probe(ctypes.CDLL(None))  # this process: it has libc's names and none of libcuda's
    assert not found.found
    assert "does not work" in found.reason


def test_missing_library_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_LIBRARIES", ("libnone-of-this-name.so.1",))
    monkeypatch.setattr(driver, "_probe_machine", driver._probe_machine.__wrapped__)
    found = probe()
    assert (found.found, found.version, found.devices, found.extra) == (False, 0, (), "")
    assert "libnone-of-this-name.so.1" in found.reason


@pytest.mark.parametrize(("version", "printed"), [(13000, "cuda13\n"), (12040, "cuda12\n"), (11080, "")])
def test_extra_option_prints_the_extra_alone(
    version: int, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "_probe_machine", lambda: driver.probe(FakeLibrary(version)))
    driver.main(["--extra"])
    assert capsys.readouterr().out == printed


def test_script_runs_on_the_standard_library_alone(tmp_path: Path) -> None:
    copy = tmp_path / "driver.py"
    copy.write_bytes(SCRIPT.read_bytes())
    command = [sys.executable, "-I", "-S", str(copy)]
    words = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    extra = subprocess.run([*command, "--extra"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert words.stdout == f"{probe()}\n"
    assert extra.stdout.strip() == probe().extra
