"""Stands in for the interpreter of the server environment: a vLLM that writes made-up states.

`EYAS_STAND_IN` says how it behaves: healthy | refuses | dies (at the second request) | hangs (never answers).
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BEHAVIOUR = os.environ.get("EYAS_STAND_IN", "healthy")


def argument(name: str) -> str:
    """As for vLLM, the last one counts."""
    return sys.argv[max(at for at, word in enumerate(sys.argv) if word == name) + 1]


class Handler(BaseHTTPRequestHandler):
    asked = 0

    def do_GET(self) -> None:
        self.reply({})

    def do_POST(self) -> None:
        Handler.asked += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if BEHAVIOUR == "dies" and Handler.asked > 1:
            print("Killed by the test", flush=True)
            os._exit(9)
        if BEHAVIOUR == "hangs":
            print("asked", flush=True)
            time.sleep(600)
        tokens = body["prompt"]
        config = json.loads(argument("--kv-transfer-config"))["kv_connector_extra_config"]
        path = Path(config["shared_storage_path"], f"cmpl-{Handler.asked}.safetensors")
        write(path, tokens)
        self.reply(
            {
                "choices": [{"prompt_token_ids": tokens}],
                "kv_transfer_params": {"hidden_states_path": str(path)},
            }
        )

    def reply(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def write(path: Path, tokens: list[int]) -> None:
    """States [T, layers, hidden size of the target] of ones times token + layer id."""
    import numpy as np
    from safetensors.numpy import save_file

    speculative = json.loads(argument("--speculative-config"))
    layers = speculative["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
    hidden_size = json.loads(Path(argument("--model"), "config.json").read_text())["hidden_size"]
    values = np.add.outer(np.array(tokens), np.array(layers))[:, :, None] + np.zeros(hidden_size)
    path.with_name(f"{path.name}.lock").touch()
    tensors = {"hidden_states": values.astype(np.float32), "token_ids": np.array(tokens, dtype=np.int64)}
    save_file(tensors, path)


def main() -> None:
    if sys.argv[1:3] == ["-I", "-c"]:
        print('{"vllm": "0.32.0", "torch": "2.13.0+cpu"}')
        return
    if BEHAVIOUR == "refuses":
        print(
            "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested"
        )
        sys.exit(1)
    print(f"arguments {json.dumps(sys.argv[1:])}", flush=True)
    ThreadingHTTPServer(("127.0.0.1", int(argument("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
