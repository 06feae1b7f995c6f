"""What schemathesis is told beyond the document: the rules that the document says in words."""
import json

import schemathesis
from hypothesis import strategies as st

# Nobody waits longer than this for an answer, in milliseconds.
PATIENCE = 2000
HERE = {"image_not_found", "secret_missing", "provider_unusable"}
WAITS = 24 * 3600 * 1000

ADDRESSES = st.sampled_from(["10.0.0.0/8", "192.0.2.0/24", "192.0.2.7", "2001:db8::/32", "10.0.0.0/8:443", "[2001:db8::1]:443"])
HOSTS = st.from_regex(r"\A[a-z]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]{2,6}){0,2}:[1-9][0-9]{0,3}\Z")
schemathesis.openapi.format("egress-destination", st.one_of(ADDRESSES, HOSTS))

SERVERS = st.dictionaries(
    st.from_regex(r"\A[a-z][a-z0-9-]{0,20}\Z"),
    st.fixed_dictionaries({"command": st.sampled_from(["uvx", "node", "/usr/bin/python3"])}),
    min_size=1,
    max_size=3,
)
schemathesis.openapi.format("client-configuration", SERVERS.map(lambda servers: json.dumps({"mcpServers": servers})))


def is_wait(value):
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= WAITS


def impatient(body, is_hosted):
    """Who may wait for a day waits for a day: what is a valid time becomes a short one, and what is left out is said."""
    if body.get("timeouts") is None:
        body["timeouts"] = {}
    timeouts, health = body["timeouts"], body.get("health")
    if isinstance(health, dict) and is_wait(health.get("startup_timeout_ms")):
        health["startup_timeout_ms"] = min(PATIENCE, health["startup_timeout_ms"])
        # Two names of one thing: they must not differ.
        if isinstance(timeouts, dict) and is_wait(timeouts.get("startup_ms")):
            timeouts["startup_ms"] = health["startup_timeout_ms"]
    elif isinstance(timeouts, dict) and timeouts.get("startup_ms") is None:
        timeouts["startup_ms"] = PATIENCE
    for key in ("startup_ms", "request_ms", "install_ms"):
        if isinstance(timeouts, dict) and is_wait(timeouts.get(key)):
            timeouts[key] = min(PATIENCE, timeouts[key])
    if is_hosted and isinstance(timeouts, dict) and timeouts.get("install_ms") is None:
        timeouts["install_ms"] = PATIENCE


def with_whole_ids(body):
    """JSON Schema takes 5.0 for an integer; who reads JSON-RPC does not."""
    for message in body if isinstance(body, list) else [body]:
        if isinstance(message, dict) and isinstance(message.get("id"), float) and message["id"].is_integer():
            message["id"] = int(message["id"])


def in_a_session(case):
    """Every message but an `initialize` is of a session; and messages of the version without them have more headers."""
    body, headers = case.body, case.headers
    if headers.get("MCP-Protocol-Version") == "2026-07-28":
        headers["MCP-Protocol-Version"] = "2025-11-25"
    begins = isinstance(body, dict) and body.get("method") == "initialize"
    if isinstance(body, (dict, list)) and not begins and "mcp-session-id" not in {name.lower() for name in headers}:
        headers["Mcp-Session-Id"] = "6f0a1d6e-52b4-4b0c-9f2b-0d6d2b1f3c11"


OF_PROGRAM = ("command", "args", "env", "isolation", "network")


def of_what_is_there(case):
    """What a change may be depends on what the server is: it keeps its name, and one that has a URL has no program."""
    if "/projects/" not in case.path and isinstance(case.body.get("name"), str):
        del case.body["name"]
    if "/projects/" in case.path and "transport" not in case.body and "config" not in case.body:
        for key in OF_PROGRAM:
            case.body.pop(key, None)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Streams have no end, and whoever reads one to its end waits for ever: a log is read, not followed."""
    if case.query and case.query.get("follow") in (True, "true"):
        case.query["follow"] = "false"
    if case.method == "POST" and (case.path.endswith("/mcp") or case.path == "/mcp/{id}"):
        in_a_session(case)
    if case.method == "POST" and case.path.endswith(("/mcp", "/mcp/{id}", "/messages")):
        with_whole_ids(case.body)
    if not isinstance(case.body, dict):
        return
    if case.path.endswith("/call") and (case.body.get("timeout_ms") is None or is_wait(case.body["timeout_ms"])):
        case.body["timeout_ms"] = min(PATIENCE, case.body.get("timeout_ms") or PATIENCE)
    if case.method == "POST" and case.path.endswith(("/mcp/servers", "/mcp/hosted")) and "name" in case.body:
        impatient(case.body, "/projects/" not in case.path)
    if case.method == "PATCH":
        of_what_is_there(case)


@schemathesis.check
def refusals_are_those_of_the_document(context, response, case):
    """What `schemathesis.toml` lets pass must have a code that the document has for this operation and status."""
    status = response.status_code
    if status not in (422, 502, 503, 504) or case.method == "HEAD":
        return
    error = response.json()["error"]
    code = (error.get("data") or {}).get("code") if "jsonrpc" in response.json() else error["code"]
    described = case.operation.definition.raw["responses"].get(str(status), {}).get("content", {})
    known = described.get("application/json", {}).get("examples", {})
    assert code in known, f"{status} with the code {code}; the document knows {', '.join(known) or 'none'}"
    assert status != 422 or code in HERE, f"422 with {code} is about what was written"
