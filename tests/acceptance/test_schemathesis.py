"""Property-based requests against the service's own OpenAPI document: no 5xx, no undocumented answer."""

import os
import subprocess
import sys

MAX_EXAMPLES = os.environ.get("RUNGUARD_SCHEMATHESIS_EXAMPLES", "50")
SEED = os.environ.get("RUNGUARD_SCHEMATHESIS_SEED", "2")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance," \
         "response_schema_conformance,unsupported_method,allow_header_conformance"


def test_the_service_answers_as_its_document_says(serve, tmp_path):
    server = serve(virtual_clock=False)
    run = subprocess.run(
        [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()",
         "run", f"{server.url}/openapi.json",
         "--checks", CHECKS, "--max-examples", MAX_EXAMPLES, "--seed", SEED,
         "--exclude-path", "/v1/events",  # a stream that never ends
         "--request-timeout", "30", "--no-color"],
        cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, f"{run.stdout[-12000:]}\n{run.stderr[-4000:]}"
    assert server.process.poll() is None, "the server did not survive"
