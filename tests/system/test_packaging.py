"""Packaging: each way of installing finds the kernels and runs a model, away from the checkout.

Nothing is downloaded: the packages that gpuexec needs are those of the environment the tests run in, linked into a
folder that new environments see; gpuexec itself is not among them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DIGITS = ROOT / "examples" / "models" / "digits.onnx"
# Run by the new environment's Python; prints what the test looks at.
SCRIPT = """
import importlib.metadata, json, sys
import numpy as np
import gpuexec as gx
from gpuexec.devices.kernels.kernel_source import kernels_dir

model = gx.load(sys.argv[1])
x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8)
answers = {}
for backend in (gx.BackendType.CPU, gx.BackendType.SIMULATOR):
    with gx.Worker(model, backend=backend) as worker:
        answers[backend.value] = np.concatenate([np.ravel(y) for y in worker.run(x)]).tolist()
print(json.dumps({
    "package": gx.__file__,
    "kernels": str(kernels_dir()),
    "version": importlib.metadata.version("gpuexec"),
    "answers": answers,
}))
"""


class Environment:
    """A virtual environment that sees what gpuexec needs, and no gpuexec."""

    def __init__(self, folder: Path, packages: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "packages.pth").write_text(f"{packages}\n")

    def install(self, *what: str) -> None:
        """Install with pip, from what is here alone."""
        options = ["--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir", "--disable-pip-version-check"]
        run([self.python, "-m", "pip", "install", "--quiet", *options, *what], self.folder)

    def describe(self) -> dict[str, object]:
        """Run a model on the CPU and the simulator, and say from where."""
        # -I: neither the working folder nor PYTHONPATH may help.
        said = run([self.python, "-I", "-c", SCRIPT, DIGITS], self.folder)
        row: dict[str, object] = json.loads(said.splitlines()[-1])
        return row


def run(command: list[object], folder: Path) -> str:
    """Run a command in a folder and return what it prints."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))[:200]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every package of this environment but gpuexec."""
    folder = tmp_path_factory.mktemp("packages")
    for site in dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")):
        for entry in Path(site).iterdir():
            if not entry.name.startswith(("gpuexec", "_gpuexec")) and entry.suffix != ".pth":
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sdist, and in ``wheels`` the wheel that is made of it, away from the checkout."""
    folder = tmp_path_factory.mktemp("built")
    run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder], ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (sources,) = (folder / "unpacked").iterdir()
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "wheels"], sources)
    return folder


@pytest.fixture
def environment(tmp_path: Path, packages: Path) -> Environment:
    return Environment(tmp_path / "environment", packages)


def test_environment_is_empty_before_anything_is_installed(environment: Environment) -> None:
    code = "import importlib.util as u, numpy; print(u.find_spec('gpuexec'), u.find_spec('tests'))"
    assert run([environment.python, "-I", "-c", code], environment.folder).split() == ["None", "None"]


# The checkout's folder is built as its wheel is, which holds what the sdist's does (below).
@pytest.mark.parametrize("way", ["wheel", "sdist", "editable"])
def test_installed_package_runs_a_model(way: str, environment: Environment, built: Path) -> None:
    (wheel,), (sdist,) = (built / "wheels").glob("*.whl"), built.glob("*.tar.gz")
    what = {"wheel": [wheel], "sdist": [sdist], "editable": ["--editable", ROOT]}[way]
    environment.install(*map(str, what))
    row = environment.describe()
    home = ROOT if way == "editable" else environment.folder
    assert Path(str(row["package"])).is_relative_to(home)
    assert Path(str(row["kernels"])).is_relative_to(home)
    assert row["version"] == read_version()
    answers = row["answers"]
    assert isinstance(answers, dict)
    assert len(answers["cpu"]) == 20
    assert answers["simulator"] == pytest.approx(answers["cpu"], rel=1e-4, abs=1e-5)
    script = environment.folder / "bin" / "gpuexec"
    assert "image" in run([script, "info", DIGITS], environment.folder)
    # Where there is no checkout, the digits are those inside the package.
    found = json.loads(run([script, "demo", "--backend", "cpu", "--json"], environment.folder))
    assert Path(found["model"]).is_relative_to(home) and found["right"] >= 0.97 * 360
    module = [environment.python, "-I", "-m", "gpuexec", "--version"]
    assert run(module, environment.folder) == f"gpuexec {read_version()}\n"


def test_installed_package_is_a_plug_in_of_polygraphy(environment: Environment, built: Path) -> None:
    (wheel,) = (built / "wheels").glob("*.whl")
    environment.install(str(wheel))
    start = "import sys; from polygraphy.tools import main; sys.exit(main())"
    compare = ["run", DIGITS, "--onnxrt", "--gpuexec", "--gpuexec-backend", "cpu", "--onnx-outputs", "mark", "all"]
    said = run([environment.python, "-I", "-c", start, *compare], environment.folder)
    assert "PASSED" in said and "gpuexec-runner-N0" in said and "layer1" in said
    wrong = subprocess.run(
        [environment.python, "-I", "-c", start, *compare, "--gpuexec-precision", "fp8", "--atol", "1e-9"],
        cwd=environment.folder, capture_output=True, text=True,
    )  # fmt: skip
    assert wrong.returncode == 1 and "FAILED" in wrong.stdout


def test_wheel_of_the_checkout_and_of_the_sdist_hold_the_same(built: Path, tmp_path: Path) -> None:
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], ROOT)
    (here,), (there,) = tmp_path.glob("*.whl"), (built / "wheels").glob("*.whl")
    assert read_names(here) == read_names(there)


def test_wheel_holds_every_source_and_nothing_else(built: Path) -> None:
    (wheel,) = (built / "wheels").glob("*.whl")
    names = {name for name in read_names(wheel) if ".dist-info/" not in name}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "gpuexec").rglob("*") if is_source(path)}
    kernels = {f"gpuexec/_{path.relative_to(ROOT)}" for path in (ROOT / "kernels").rglob("*") if is_source(path)}
    digits = {"gpuexec/_digits/digits.onnx", "gpuexec/_digits/digits.npz"}
    assert names == sources | kernels | digits
    assert {"gpuexec/py.typed", "gpuexec/_kernels/include/types.cuh", "gpuexec/_kernels/simulator/block.cpp"} <= names


def test_recipe_for_conda_asks_for_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    recipe = (ROOT / "CONTRIBUTING.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    rows = {name: re.search(rf"^  {name}: \[(.*)\]$", recipe, re.M) for name in ("host", "run")}
    asked = {name: {each.replace(" ", "") for each in row[1].split(", ")} for name, row in rows.items() if row}
    python = f"python{project['project']['requires-python']}"
    assert asked["run"] == {python, *project["project"]["dependencies"]}
    assert asked["host"] == {python, "pip", *project["build-system"]["requires"]}
    assert f'version: "{read_version()}"' in recipe
    (script,) = project["project"]["scripts"].items()
    assert f'entry_points: ["{" = ".join(script)}"]' in recipe


def is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def read_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def read_version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version
