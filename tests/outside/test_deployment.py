"""The files with which others run Delayboard, each checked by the program that reads such files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, HelmError, chart

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs/deploy"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
# Of Kubernetes, the oldest and the newest that the chart is for.
KUBERNETES = ("1.27", "1.37")
INGRESS: dict[str, Any] = {
    "ingress": {"enabled": True, "className": "nginx", "annotations": {"a": "b"}},
    "settings": {"FORWARDED_ALLOW_IPS": "10.1.2.3"},
}
CLOSED = {
    "networkPolicy": {
        "from": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
        "egress": [{"ports": [{"port": 53, "protocol": "UDP"}, {"port": 5432}]}],
    },
    "imagePullSecrets": [{"name": "registry"}],
    "worker": {"storage": {"className": "fast"}, "replicas": 3},
    "settings": {"LOG_URL": "s3://logs/delayboard"},
}


def render(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    with_values = Chart.load(DEPLOY / "helm").render(dict(values), name="board", namespace="x")
    for name, text in with_values.items():
        if name.endswith(".yaml"):
            yield from filter(None, yaml.safe_load_all(text))


def test_the_image_file_has_no_fault_that_hadolint_knows() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, ROOT / "Containerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_chart_is_of_this_version_and_has_no_warning() -> None:
    described = yaml.safe_load((DEPLOY / "helm/Chart.yaml").read_text())
    assert (described["version"], described["appVersion"]) == (VERSION, VERSION)
    report = chart.lint(DEPLOY / "helm", strict=True)
    # Severity 1 is information: it has no icon.
    assert [one for one in report["messages"] if one["severity"] > 1] == report["errors"] == []


@pytest.mark.parametrize("values", [{}, INGRESS, CLOSED], ids=["default", "ingress", "closed"])
def test_each_object_of_the_chart_is_valid_kubernetes(values: Mapping[str, Any]) -> None:
    objects = list(render(values))
    for one in objects:
        for version in KUBERNETES:
            kubernetes_validate.validate(one, version, strict=True)
    kinds = sorted(one["kind"] for one in objects)
    assert kinds == sorted(
        [
            *("Deployment", "StatefulSet", "Job", "Service", "Service"),
            *("NetworkPolicy", "NetworkPolicy"),
            *(["Ingress"] if values is INGRESS else []),
        ]
    )


def test_several_workers_need_a_place_for_all_logs() -> None:
    with pytest.raises(HelmError, match=r"Several workers need settings\.LOG_URL"):
        list(render({"worker": {"replicas": 2}}))


def test_an_ingress_with_tls_needs_its_addresses() -> None:
    with pytest.raises(HelmError, match=r"Set settings\.FORWARDED_ALLOW_IPS"):
        list(render({"ingress": INGRESS["ingress"]}))


def test_a_setting_of_yours_replaces_the_one_that_the_chart_makes() -> None:
    settings = {**INGRESS["settings"], "ALLOWED_HOSTS": "a.test,b.test"}
    for one in render({**INGRESS, "settings": settings}):
        if "template" in one.get("spec", {}):
            (container,) = one["spec"]["template"]["spec"]["containers"]
            names = [variable["name"] for variable in container["env"]]
            assert sorted(set(names)) == sorted(names)
            assert {"name": "ALLOWED_HOSTS", "value": "a.test,b.test"} in container["env"]


def test_no_pod_writes_its_root_or_makes_keys_of_its_own() -> None:
    pods = [
        one["spec"]["template"]["spec"] for one in render({}) if "template" in one.get("spec", {})
    ]
    assert len(pods) == 3
    for pod in pods:
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/data", "/tmp"]
        # Kubernetes would set DELAYBOARD_PORT for a Service of that name, which is refused.
        assert pod["enableServiceLinks"] is False
        secret = {one["name"] for one in container["env"] if "valueFrom" in one}
        assert secret == {"DATABASE_URL", "SECRET_KEY", "CREDENTIAL_KEYS"}


def test_compose_starts_the_commands_that_there_are_without_a_root_that_is_written() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    commands = {name: one.get("command") for name, one in services.items()}
    assert commands == {
        "migrate": ["migrate", "--noinput"],
        "site": None,
        "worker": ["worker"],
        "postgres": None,
        "rabbitmq": None,
    }
    for name in ("migrate", "site", "worker"):
        assert (services[name]["read_only"], services[name]["tmpfs"]) == (True, ["/tmp"])
        assert services[name]["env_file"] == [{"path": "delayboard.env", "required": False}]


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    for unit in (DEPLOY / "systemd").glob("*.service"):
        # It asks whether the program is there.
        text = unit.read_text().replace("/opt/delayboard/bin/delayboard", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    units = sorted(tmp_path.glob("*.service"))
    assert len(units) == 3
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "delayboard" in line]
    assert (done.returncode, ours) == (0, [])


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the files that release.sh reads before it builds, as for a release."""
    for name in ("release.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changes\n\n## {VERSION}, 2026-12-01\nThe first.\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "Release")
    return tmp_path


def git(folder: Path, *words: str) -> None:
    names = ("-c", "user.name=x", "-c", "user.email=x@example.com")
    subprocess.run(["git", *names, *words], cwd=folder, check=True)


def release(folder: Path) -> str:
    """What a refusal says; it ends before a program that builds is started."""
    done = subprocess.run(
        ["./release.sh"],
        cwd=folder,
        env={**os.environ, "PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr.removeprefix("The release is not built. ").strip()


def test_a_release_is_of_a_clean_tree_with_the_tag_of_its_version(checkout: Path) -> None:
    assert release(checkout) == f"No tag is at this commit: run “git tag v{VERSION}”."
    git(checkout, "tag", "v9.9.9")
    assert release(checkout) == (
        f"The tag is v9.9.9, and pyproject.toml has version {VERSION}: correct one of them."
    )
    (checkout / "new").touch()
    assert release(checkout) == "The working tree has changes: commit or remove them."
    (checkout / "new").unlink()
    git(checkout, "tag", f"v{VERSION}")
    assert release(checkout) == ""


@pytest.mark.parametrize(
    ("heading", "why"),
    [
        (f"## {VERSION}, not released yet", f"CHANGELOG.md says that {VERSION} is not released"),
        ("## 9.9.9", f"CHANGELOG.md has no section {VERSION}: write it."),
    ],
)
def test_a_release_has_its_changes(checkout: Path, heading: str, why: str) -> None:
    changes = checkout / "CHANGELOG.md"
    changes.write_text(re.sub(r"^## .*$", heading, changes.read_text(), flags=re.MULTILINE))
    git(checkout, "commit", "-q", "-a", "-m", "Change")
    git(checkout, "tag", f"v{VERSION}")
    assert release(checkout).startswith(why)
