"""Units and manifests of the documentation."""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import referencing
import yaml
from referencing.jsonschema import DRAFT202012

from tests.support import workers
from wbengine._cli import app, context, dashboard_command, serve_command, worker_command
from wbengine.telemetry import _serving

FOLDER = workers.REPOSITORY / "doc" / "deployment"
UNITS = sorted(FOLDER.glob("systemd/*.service"))
MANIFESTS = sorted(FOLDER.glob("kubernetes/*.yaml"))
COMPOSE = FOLDER / "containers" / "compose.yaml"


def check(command: Sequence[str]) -> None:
    """Check that the words are a valid command of wbengine."""
    program, *words = command
    if Path(program).name == "python":
        assert words[0] == "-m"
        assert words[1] == "wbengine.worker"
        name, arguments = "worker", words[2:]
    else:
        assert Path(program).name == "wbengine"
        name, *arguments = words
    modules = {"dashboard": dashboard_command, "serve": serve_command, "worker": worker_command}
    with click.Context(app.root, obj=context.Context(app.COMMANDS)) as above:
        modules[name].command.make_context(name, arguments, parent=above)


def test_units_and_manifests_exist() -> None:
    assert UNITS and MANIFESTS


def service_of(path: Path) -> dict[str, list[str]]:
    """Return all values of each setting, which may occur several times."""
    _, _, section = path.read_text(encoding="utf-8").partition("[Service]\n")
    settings: dict[str, list[str]] = {}
    for line in section.partition("\n[")[0].splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            settings.setdefault(name, []).append(value)
    return settings


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_unit_starts_valid_command(path: Path) -> None:
    service = {name: values[-1] for name, values in service_of(path).items()}
    check(shlex.split(service["ExecStart"].replace("%i", "1")))
    match = re.search(r"--drain-timeout (\d+)", service["ExecStart"])
    if match is not None:
        assert int(service["TimeoutStopSec"]) >= int(match[1]) + 15
    assert path.read_text(encoding="utf-8").endswith("\n[Install]\nWantedBy=multi-user.target\n")


#: Required settings of each unit.
CONFINED = {
    "AmbientCapabilities": [""],
    "CapabilityBoundingSet": [""],
    "DevicePolicy": ["closed"],
    "KeyringMode": ["private"],
    "LimitCORE": ["0"],
    "LockPersonality": ["yes"],
    "MemoryDenyWriteExecute": ["yes"],
    "NoNewPrivileges": ["yes"],
    "PrivateDevices": ["yes"],
    "PrivateTmp": ["yes"],
    "ProtectClock": ["yes"],
    "ProtectControlGroups": ["yes"],
    "ProtectHome": ["yes"],
    "ProtectHostname": ["yes"],
    "ProtectKernelLogs": ["yes"],
    "ProtectKernelModules": ["yes"],
    "ProtectKernelTunables": ["yes"],
    "ProtectProc": ["invisible"],
    "ProtectSystem": ["strict"],
    "RemoveIPC": ["yes"],
    "RestrictAddressFamilies": ["AF_INET AF_INET6 AF_UNIX"],
    "RestrictNamespaces": ["yes"],
    "RestrictRealtime": ["yes"],
    "RestrictSUIDSGID": ["yes"],
    "StateDirectoryMode": ["0700"],
    "SystemCallArchitectures": ["native"],
    "SystemCallFilter": ["@system-service", "~@privileged @resources"],
    "UMask": ["0077"],
}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
@pytest.mark.parametrize("setting", CONFINED)
def test_unit_has_sandbox_setting(setting: str, path: Path) -> None:
    assert service_of(path).get(setting) == CONFINED[setting]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_unit_runs_without_root_and_has_limits(path: Path) -> None:
    settings = service_of(path)
    assert settings["User"] not in ([], ["root"], ["0"])
    assert re.fullmatch(r"\d+G", settings["MemoryMax"][0]) and int(settings["TasksMax"][0]) <= 1000
    assert settings["StateDirectory"] == ["orders"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_verifies_unit_and_rates_its_exposure_low(path: Path, tmp_path: Path) -> None:
    """The programs and the user of the unit do not exist on this host."""
    text = re.sub(r"/srv/orders/\S+", "/bin/true", path.read_text(encoding="utf-8"))
    text = text.replace("WorkingDirectory=/bin/true\n", "").replace(
        "User=orders\n", "User=daemon\n"
    )
    unit = tmp_path / path.name.replace("@", "@1")
    unit.write_text(text, encoding="utf-8")
    for words in (["verify"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run(
            ["systemd-analyze", *words, str(unit)], capture_output=True, text=True
        )
        if "nrecognized option" in done.stderr:
            pytest.skip("this systemd cannot judge a file")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Unknown" not in done.stderr, done.stderr


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield path.name, document


def templates() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, document in documents():
        spec = document["spec"]
        template = spec.get("jobTemplate", {"spec": spec})["spec"].get("template")
        if template is not None:
            yield name, template


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, template in templates():
        yield name, template["spec"]


each_pod = pytest.mark.parametrize("pod", [pytest.param(pod, id=name) for name, pod in pods()])


@each_pod
def test_pod_starts_valid_command_and_its_probes_have_ports(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    words = [*container["command"], *container.get("args", ())]
    check(words)
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    for probe in ("livenessProbe", "readinessProbe"):
        if probe in container:
            where = container[probe]["httpGet"]
            assert where["path"] in ("/livez", "/readyz") and where["port"] in ports
    for port in ports.values():
        assert any(str(port) in word for word in words)
    for word in words:
        if (match := re.fullmatch(r"--drain-timeout=(\d+)", word)) is not None:
            assert pod["terminationGracePeriodSeconds"] >= int(match[1]) + 15


@each_pod
def test_pod_runs_without_root_and_shares_nothing_with_its_node(pod: dict[str, Any]) -> None:
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] >= 10_000 <= context["runAsGroup"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert all(set(volume) == {"name", "emptyDir"} for volume in pod["volumes"])


@each_pod
def test_container_of_pod_has_read_only_root_and_no_privileges(
    pod: dict[str, Any],
) -> None:
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    assert pod["volumes"][0]["emptyDir"]["sizeLimit"].endswith("Mi")


@each_pod
def test_container_of_pod_has_limits(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    limits = container["resources"]["limits"]
    assert set(limits) == {"cpu", "memory", "ephemeral-storage"}
    assert set(container["resources"]["requests"]) == set(limits)


#: Returns the JSON value of a file of the wheel of a release.
Schema = Callable[[str, str], Any]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    """Read the schemas that packages contain, without installing these."""
    folder = tmp_path_factory.mktemp("wheels")

    def read(release: str, path: str) -> Any:
        download = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *download, release], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        name = release.replace("-", "_").replace("==", "-")
        with zipfile.ZipFile(next(folder.glob(f"{name}-*.whl"))) as wheel:
            return json.loads(wheel.read(path))

    return read


def misspelled(document: dict[str, Any], *path: str) -> dict[str, Any]:
    """Return a copy in which the last key of the path has one more letter."""
    result = copy.deepcopy(document)
    place = result
    for key in path[:-1]:
        place = place[key]
    place[path[-1] + "s"] = place.pop(path[-1])
    return result


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.30.0", "1.37.0"])
def test_manifests_follow_schemas_of_kubernetes(version: str, schema: Schema) -> None:
    folder = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict"
    definitions = schema("kubernetes-validate==1.37.0", f"{folder}/_definitions.json")
    resource = DRAFT202012.create_resource(definitions)
    registry: referencing.Registry[Any] = referencing.Registry()
    registry = registry.with_resource("/api/_definitions.json", resource)

    def validate(document: dict[str, Any]) -> None:
        (name,) = (
            name
            for name, one in definitions["$defs"].items()
            for kind in one.get("x-kubernetes-group-version-kind", ())
            if "/".join(filter(None, (kind["group"], kind["version"]))) == document["apiVersion"]
            and kind["kind"] == document["kind"]
        )
        root = {"$ref": f"/api/_definitions.json#/$defs/{name}"}
        jsonschema.Draft202012Validator(root, registry=registry).validate(document)

    for _, document in documents():
        validate(document)
        with pytest.raises(jsonschema.ValidationError):
            validate(misspelled(document, "spec", next(iter(document["spec"]))))


@pytest.mark.slow
def test_compose_file_follows_schema_of_compose(schema: Schema) -> None:
    path = "check_jsonschema/builtin_schemas/vendor/compose-spec.json"
    validator = jsonschema.Draft202012Validator(schema("check-jsonschema==0.39.0", path))
    compose = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    validator.validate(compose)
    for name in services():
        assert not validator.is_valid(misspelled(compose, "services", name, "command"))


def policies() -> dict[str, dict[str, Any]]:
    network_policies = [
        document for _, document in documents() if document["kind"] == "NetworkPolicy"
    ]
    return {policy["metadata"]["name"]: policy["spec"] for policy in network_policies}


def names_of(selector: dict[str, Any]) -> set[str]:
    """Return the values of the label `app` that a selector matches."""
    exact = selector.get("matchLabels", {}).get("app")
    (rule,) = selector.get("matchExpressions", [{"values": []}])
    return {exact} if exact is not None else set(rule["values"])


def test_network_policies_deny_by_default() -> None:
    nobody = policies()["orders-deny-all"]
    assert nobody == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name, policy in policies().items():
        for way, side in (("ingress", "from"), ("egress", "to")):
            for rule in policy.get(way, ()):
                # a rule without sides or ports allows all of them
                assert rule[side] and rule["ports"], name
        assert set(policy["policyTypes"]) >= {
            way.title() for way in policy if way.endswith("gress")
        }


def test_network_policies_allow_access_to_broker_and_store() -> None:
    network_policies = policies()
    users = {template["metadata"]["labels"]["app"] for _, template in templates()}
    assert names_of(network_policies["orders-broker"]["podSelector"]) == users
    assert names_of(network_policies["orders-store"]["podSelector"]) == users - {"orders-worker"}
    for way, place in (("orders-broker", "orders-redis"), ("orders-store", "orders-postgres")):
        (rule,) = network_policies[place]["ingress"]
        (source,) = rule["from"]
        assert names_of(source["podSelector"]) == names_of(network_policies[way]["podSelector"])
        there = {
            "to": [{"podSelector": network_policies[place]["podSelector"]}],
            "ports": rule["ports"],
        }
        assert there in network_policies[way]["egress"]


def test_ports_of_network_policy_exist_in_pods() -> None:
    for _, template in templates():
        for container in template["spec"]["containers"]:
            ports = {port["containerPort"] for port in container.get("ports", ())}
            policy = policies().get(template["metadata"]["labels"]["app"], {"ingress": ()})
            for rule in policy["ingress"]:
                assert {port["port"] for port in rule["ports"]} <= ports


def services() -> dict[str, Any]:
    """Return the services that run the image of wbengine."""
    definitions = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return {name: service for name, service in definitions.items() if "build" in service}


@pytest.mark.parametrize("name", services())
def test_compose_service_starts_valid_command(name: str) -> None:
    service = services()[name]
    assert service["init"] is True
    check(["wbengine", *service["command"]])
    for word in service["command"]:
        if (match := re.fullmatch(r"--drain-timeout=(\d+)", word)) is not None:
            assert int(service["stop_grace_period"].removesuffix("s")) >= int(match[1]) + 15
    assert 'ENTRYPOINT ["wbengine"]' in (COMPOSE.parent / "Dockerfile").read_text("utf-8")


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_health_check_of_conductor_reads_readiness(status: int, code: int) -> None:
    service = services()["conductor"]
    start, *words = service["healthcheck"]["test"]
    assert start == "CMD" and "--health-addr=127.0.0.1:8586" in service["command"]
    server = _serving.Server(
        _serving.address("127.0.0.1:0"), {"/readyz": lambda: _serving.Answer(b"", status=status)}
    )
    server.start()
    try:
        words[-1] = words[-1].replace("8586", str(server.address.port))
        assert subprocess.run([sys.executable, *words[1:]]).returncode == code
    finally:
        server.stop()


@pytest.mark.parametrize("name", services())
def test_compose_service_is_sandboxed(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True and service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"] and "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"] and service["pids_limit"] <= 1000
    assert not service.get("privileged")


def test_only_dashboard_is_reachable_from_outside() -> None:
    compose = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    assert compose["networks"]["inside"] == {"internal": True}
    for name, service in compose["services"].items():
        outside = name == "dashboard"
        assert service["networks"] == (["inside", "outside"] if outside else ["inside"])
        assert ("ports" in service) == outside
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_image_runs_as_numeric_non_root_user() -> None:
    """Kubernetes cannot verify that a user given by name is not root."""
    lines = (COMPOSE.parent / "Dockerfile").read_text(encoding="utf-8").splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users == ["10001"]
    assert any("--uid 10001" in line for line in lines)


def test_no_password_is_on_a_command_line() -> None:
    for path in [*UNITS, *MANIFESTS, COMPOSE]:
        assert "://" not in re.sub(r"registry\S+", "", path.read_text(encoding="utf-8")), path
