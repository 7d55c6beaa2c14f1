"""The Procfile, docker-compose.yml and `fencebeat up` run the same processes, and the compose file keeps its promises.

Where there is no Docker engine the file is only parsed; these rules are what a reader relies on.
"""

import re
from pathlib import Path
from string import Template

import pytest
import yaml

from ops.processes import PROCESSES, environment

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
PROCFILE = dict(
    line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines() if line and not line.startswith("#")
)
SECRET = re.compile(r"password|api_key|secret|auth$|_hash$", re.IGNORECASE)


def _items(environ):
    return environ.items() if isinstance(environ, dict) else (item.split("=", 1) for item in environ)


def test_the_procfile_has_the_processes_of_up():
    assert {name: command for name, command in PROCFILE.items() if name != "release"} == {
        process.name: process.command for process in PROCESSES
    }
    assert PROCFILE["release"] == "fencebeat migrate"


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.name)
def test_compose_runs_the_commands_of_the_procfile(process):
    service = SERVICES[process.name]
    filled = Template(process.command).substitute(service["environment"])
    assert service["command"] == filled.split()


def test_compose_runs_two_beats_and_migrates_first():
    assert SERVICES["beat"]["deploy"]["replicas"] == 2 == next(p.count for p in PROCESSES if p.name == "beat")
    assert SERVICES["migrate"]["command"] == PROCFILE["release"].split()
    for process in PROCESSES:
        assert SERVICES[process.name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_health_check_or_says_why_not(name):
    service = SERVICES[name]
    assert bool(service.get("healthcheck", {}).get("test")) != bool(service.get("x-no-healthcheck"))
    for limit in ("interval", "timeout", "retries"):
        assert limit in service.get("healthcheck", {limit: "none needed"})


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_limited(name):
    limits = SERVICES[name]["deploy"]["resources"]["limits"]
    assert float(limits["cpus"]) > 0
    assert re.fullmatch(r"\d+[MG]", limits["memory"])


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned(name):
    image = SERVICES[name]["image"]
    assert re.search(r":v?\d+\.\d+\.\d+", image), image


def test_the_base_image_is_pinned():
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert bases
    assert all(re.search(r":\d+\.\d+\.\d+", base) for base in bases)


@pytest.mark.parametrize("name", SERVICES)
def test_no_secret_has_a_value_or_a_default(name):
    for key, value in _items(SERVICES[name].get("environment", {})):
        if SECRET.search(key):
            assert re.fullmatch(r"\$\{[A-Z_]+:\?[^}]+\}", value), f"{key} must come from the environment"
        inside = re.search(r"://[^:/@]*:(.*)@", str(value))
        assert inside is None or re.fullmatch(r"\$\{[A-Z_]+:\?[^}]+\}", inside.group(1)), f"{key} holds a password"
    for word in [*SERVICES[name].get("command", []), *SERVICES[name].get("healthcheck", {}).get("test", [])]:
        found = re.search(r"(?:--requirepass|--user|password=) *\"?([^\s\"]+)", word)
        assert found is None or "$$" in found.group(1), f"{name} has a password in a command"


@pytest.mark.parametrize("name", SERVICES)
def test_only_loopback_is_published(name):
    assert all(str(port).startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_opensearch_speaks_tls_with_authentication_to_clients_that_check_it():
    server = SERVICES["opensearch"]["environment"]
    assert server["plugins.security.disabled"] == "false"
    assert server["plugins.security.ssl.http.enabled"] == "true"
    for process in PROCESSES:
        client = SERVICES[process.name]["environment"]
        assert client["OPENSEARCH_URL"].startswith("https://")
        assert client["OPENSEARCH_CA"]
        assert client["OPENSEARCH_PASSWORD"] == server["OPENSEARCH_INITIAL_ADMIN_PASSWORD"]


def test_the_broker_never_evicts():
    assert "--maxmemory-policy noeviction" in " ".join(SERVICES["valkey"]["command"])


def test_variables_of_a_command_come_from_the_environment(tmp_path):
    page = next(process for process in PROCESSES if process.name == "page")
    argv = page.argv({**environment(tmp_path, {}), "FENCEBEAT_PAGE_PORT": "1234"})
    assert argv[1:] == ["page", "--port", "1234"]
    with pytest.raises(KeyError):
        page.argv({})
