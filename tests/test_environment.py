import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from optcli import environment

REPOSITORY = Path(environment.__file__).parents[1]


def test_conditions_are_plain_data_and_say_what_the_system_tells():
    found = environment.conditions()
    assert json.loads(json.dumps(found)) == found
    assert {"load_average", "affinity", "cpu_quota", "governor", "steal_s", "gpus"} <= set(found)


def test_what_changes_from_hour_to_hour_is_not_in_what_makes_runs_comparable():
    assert not set(environment.conditions()) & set(environment.describe())


def test_stolen_time_is_read_from_the_first_line(monkeypatch):
    line = "cpu  590684 1116650 251305 518581 3550 0 1349 1700 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1"
    monkeypatch.setattr(environment, "_text", lambda path: line)
    monkeypatch.setattr(environment.os, "sysconf", lambda name: 100)
    assert environment.steal_s() == 17
    monkeypatch.setattr(environment, "_text", lambda path: None)
    assert environment.steal_s() is None


@pytest.fixture
def with_gpu(monkeypatch):
    monkeypatch.setattr(environment, "has_gpu", lambda: True)
    monkeypatch.setattr(
        environment, "gpu_models", environment.gpu_models.__wrapped__
    )  # nothing is remembered

    def answers(stdout=None):
        def run(command, **options):
            if stdout is None:
                raise FileNotFoundError(command[0])
            return subprocess.CompletedProcess(command, 0, stdout)

        monkeypatch.setattr(environment.subprocess, "run", run)

    return answers


def test_clocks_and_throttling_of_gpus_are_what_nvidia_smi_says(with_gpu):
    with_gpu("NVIDIA H200, 580.1, 1980 MHz, 3201 MHz, 700.00 W, 31, 0x0000000000000001\n")
    (gpu,) = environment.conditions()["gpus"]
    assert (gpu["clocks.sm"], gpu["power.limit"]) == ("1980 MHz", "700.00 W")
    assert gpu["clocks_throttle_reasons.active"] == "0x0000000000000001"


def test_model_and_driver_of_gpus_are_part_of_what_is_compared(with_gpu):
    with_gpu("NVIDIA H200, 580.65.06\n")
    assert environment.describe()["gpu_models"] == [
        {"name": "NVIDIA H200", "driver_version": "580.65.06"}
    ]


def test_a_gpu_that_cannot_be_asked_is_no_error(with_gpu):
    with_gpu(None)
    assert environment.conditions()["gpus"] == []


def test_bindings_that_were_carried_here_are_an_installation(tmp_path, monkeypatch):
    about = tmp_path / "tensorrt_cu13_bindings-11.4.0.106.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: tensorrt-cu13-bindings\nVersion: 11.4.0.106\n")
    known = environment.version.__wrapped__
    before = known("tensorrt")
    monkeypatch.syspath_prepend(tmp_path)
    assert known("tensorrt") == (before or "11.4.0.106")


@pytest.fixture
def system(monkeypatch):
    """What the system says of itself, by path; no container, and `machine` is not remembered."""
    monkeypatch.setattr(environment, "_in_container", lambda: False)

    def told(**files):
        known = {name.replace("_", "/").replace("//", "_"): text for name, text in files.items()}
        monkeypatch.setattr(environment, "_text", lambda path: known.get(path.strip("/")))
        environment.machine.cache_clear()
        return environment.machine()

    yield told
    environment.machine.cache_clear()


def test_two_machines_of_one_processor_differ_and_no_id_can_be_read(system):
    cpu = "processor : 0\nmodel name : AMD EPYC\nflags : avx2 fma\nstepping : 1\n\nprocessor : 1\n"
    one = system(proc_cpuinfo=cpu, **{"etc_machine-id": "a" * 32})
    other = system(proc_cpuinfo=cpu, **{"etc_machine-id": "b" * 32})
    assert one["identity"] != other["identity"]
    assert "a" * 32 not in str(one)
    assert (one["hypervisor"], one["processor"]) == (False, {"stepping": "1"})
    assert one == system(proc_cpuinfo=cpu, **{"etc_machine-id": "a" * 32})
    wider = system(proc_cpuinfo=cpu.replace("fma", "fma avx512f"), **{"etc_machine-id": "a" * 32})
    assert wider["instructions"] != one["instructions"]


@pytest.mark.parametrize("name", ["a" * 32, None])
def test_copies_of_one_image_and_containers_without_an_id_are_told_apart(system, name):
    flags = "fma hypervisor" if name else "fma"
    known = {"etc_machine-id": name} if name else {}
    boots = [
        system(proc_cpuinfo=f"flags : {flags}\n\n", proc_sys_kernel_random_boot__id=boot, **known)[
            "identity"
        ]
        for boot in ("first", "second")
    ]
    assert boots[0] != boots[1]


def test_the_temperature_is_that_of_the_hottest_sensor_of_the_processor(tmp_path):
    assert environment.temperature_c(tmp_path) is None
    sensors = {
        "thermal/thermal_zone0": {"type": "x86_pkg_temp", "temp": "51000"},
        "thermal/thermal_zone1": {"type": "iwlwifi", "temp": "99000"},
        "hwmon/hwmon0": {"name": "k10temp", "temp1_input": "48500", "temp2_input": "62125"},
        "hwmon/hwmon1": {"name": "nvme", "temp1_input": "80000"},
        "hwmon/hwmon2": {"name": "coretemp", "temp1_input": "not told"},
    }
    for folder, files in sensors.items():
        (tmp_path / folder).mkdir(parents=True)
        for name, content in files.items():
            (tmp_path / folder / name).write_text(f"{content}\n")
    assert environment.temperature_c(tmp_path) == 62.125


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Writes files of control groups; the process is in the groups of these lines."""
    own = tmp_path / "self_cgroup"
    text = environment._text
    redirected = {"/proc/self/cgroup": str(own)}
    monkeypatch.setattr(environment, "_text", lambda path: text(redirected.get(path, path)))
    monkeypatch.setattr(environment, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(environment, "_affinity", lambda: list(range(8)))

    def write(lines, **files):
        own.write_text(lines)
        for name, content in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return write


@pytest.mark.parametrize(
    ("lines", "files", "quota", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, None, 8),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5, 1),
        # The quota is that of a group above: a pod's, or a slice's of systemd.
        ("0::/pod/app\n", {"pod/app/cpu.max": "max 100000", "pod/cpu.max": "300000 100000"}, 3, 3),
        # The tightest counts.
        ("0::/pod/app\n", {"pod/app/cpu.max": "400000 100000", "pod/cpu.max": "300000 100000"}, 3, 3),
        # The container's own group is its root, and has another name outside.
        ("0::/../../docker/1f\n", {"cpu.max": "200000 100000"}, 2, 2),
        (
            "2:cpu,cpuacct:/docker/1f\n1:name=systemd:/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/cpu.cfs_period_us": "50000\n"},
            3,
            3,
        ),
        (
            "3:cpu:/a/b\n0::/\n",
            {
                "cpu/a/b/cpu.cfs_quota_us": "-1\n",
                "cpu/a/b/cpu.cfs_period_us": "100000\n",
                "cpu/a/cpu.cfs_quota_us": "100000\n",
                "cpu/a/cpu.cfs_period_us": "100000\n",
            },
            1,
            1,
        ),
        (
            "1:cpuset:/\n",
            {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"},
            None,
            8,
        ),
        ("", {}, None, 8),
    ],
)
def test_the_quota_is_the_tightest_of_all_groups_of_both_versions(groups, lines, files, quota, cores):
    groups(lines, **files)
    assert environment.cpu_quota() == quota
    assert environment.usable_cores() == cores
    environment.machine.cache_clear()
    assert environment.machine()["cpu_quota"] == quota
    environment.machine.cache_clear()


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        ("0::/a\n", {"a/cpu.stat": "usage_usec 5\nnr_throttled 3\nthrottled_usec 1500000\n"}),
        ("4:cpu,cpuacct:/a\n", {"cpu,cpuacct/cpu.stat": "nr_throttled 3\nthrottled_time 1500000000\n"}),
    ],
)
def test_what_a_quota_has_taken_is_told_by_both_versions(groups, lines, files):
    groups(lines)
    assert environment.throttled_s() == 0
    groups(lines, **files)
    assert environment.throttled_s() == 1.5
    assert environment.conditions()["throttled_s"] == 1.5


def test_hints_install_what_the_extras_hold():
    """optcli is on no index: `pip install 'optcli[timm]'` would find nothing."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for name, packages in environment.EXTRAS.items():
        assert set(packages) == {re.split(r"[><=;!]", each)[0] for each in extras[name]}, name
    own = {"all", "docs", "dev"}  # of several extras, and of who works on optcli
    assert set(extras) - own == set(environment.EXTRAS)
    for package, names in environment._EXTRAS_OF.items():
        assert set(names) <= set(extras), package
    assert environment.pip_install("serve").startswith("pip install aiohttp prometheus-client 'ray[")
    (one,) = environment.missing(environment.Needs(packages=("tensorrt_of_nobody",)))
    assert one.hint == "pip install tensorrt_of_nobody"
    texts = [path.read_text() for path in (REPOSITORY / "optcli").rglob("*.py")]
    assert not [text for text in texts if "pip install 'optcli[" in text]
