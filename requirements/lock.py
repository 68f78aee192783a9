"""Write constraints.txt and numerics.txt from the versions installed in this environment."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

HERE = Path(__file__).parent
NUMERICS = {
    "torch",
    "transformers",
    "lightning",
    "pytorch-lightning",
    "safetensors",
    "numpy",
    "tokenizers",
    "gguf",
}
NOT_PINNED = {"eyas", "pip", "setuptools"}


def main() -> None:
    pinned_elsewhere = set(re.findall(r"^([\w-]+)==", (HERE / "default-run.txt").read_text(), re.MULTILINE))
    versions = {
        name: distribution.version.split("+")[0]
        for distribution in importlib.metadata.distributions()
        if (name := distribution.metadata["Name"].lower().replace("_", "-"))
        not in NOT_PINNED | pinned_elsewhere
    }
    for file, chosen in (("numerics.txt", NUMERICS), ("constraints.txt", set(versions) - NUMERICS)):
        path = HERE / file
        head = [line for line in path.read_text().splitlines() if line.startswith(("#", "-c"))]
        pins = [f"{name}=={versions[name]}" for name in sorted(chosen & set(versions))]
        path.write_text("\n".join([*head, *pins]) + "\n")


if __name__ == "__main__":
    main()
