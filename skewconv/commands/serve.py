"""skewconv serve: predictions with certified radii over HTTP."""

import json
import sys
from dataclasses import dataclass

from skewconv.commands import Json, RunPath
from skewconv.extras import optional
from skewconv.train.environment import existing_checkpoint


@dataclass(frozen=True)
class Serve:
    """Answer POST requests with the class, the margins and the certified radius of a picture.

    POST the bytes of a picture to /predict, or {"pictures": [base64, ...]} to /batch; GET /health. Ctrl-C ends it. For
    heavy traffic export the network to ONNX instead.
    """

    run_path: RunPath
    port: int = 8000
    """Port (0: any that is free)."""
    host: str = "127.0.0.1"
    """Address to listen on: this machine only, or 0.0.0.0 inside a container."""
    connections: int = 32
    """Open connections at a time; beyond them the answer is 503."""
    json: Json = False

    def run(self) -> int:
        place = existing_checkpoint(self.run_path)
        for module in ("anyio", "starlette", "uvicorn"):
            optional(module, module, "serve")
        from skewconv.checks import check_counts
        from skewconv.serve import listen, prediction_app, serve
        from skewconv.train.run import open_run

        check_counts(connections=self.connections)
        with listen(self.port, self.host) as listener:
            print("preparing the network", file=sys.stderr, flush=True)
            app = prediction_app(open_run(place))
            address = f"http://{self.host}:{listener.getsockname()[1]}"
            text = f"serving   {address}\n          POST a picture to /predict; Ctrl-C ends it"
            print(json.dumps({"address": address}) if self.json else text, flush=True)
            serve(app, listener, limit_concurrency=self.connections)
        print("ended", file=sys.stderr)
        return 0
