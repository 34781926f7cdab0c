"""A program that runs in SGLang's environment: the hidden states that transformers computes.

::

    python programs.py MODEL_DIR LAYERS IN OUT      IN: npz of token arrays; OUT: npz of states
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def states(model_dir: Path, layers: list[int], tokens: Path, output: Path) -> None:
    """Save float32 states of each array of tokens: after `layers`, and after the final norm."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, output_loading_info=True
    )
    model, report = loaded
    wrong = {key: names for key, names in report.items() if names}
    if wrong:
        raise SystemExit(f"{model_dir}: the weights do not fit: {wrong}")
    found: dict[str, Any] = {}
    with np.load(tokens) as arrays, torch.inference_mode():
        for name in arrays:
            ids = torch.from_numpy(arrays[name].astype(np.int64))[None]
            out = model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
            # hidden_states[0] is the embedding: the state after 0-based layer k is [k + 1].
            slots = [out.hidden_states[layer + 1][0] for layer in layers]
            found[name] = torch.stack([*slots, out.last_hidden_state[0]], dim=1).numpy()
    np.savez(output, **found)


def main(model_dir: str, layers: str, tokens: str, output: str) -> None:
    """Run it."""
    from hsstore_test_platform import make_torchvision_importable

    make_torchvision_importable()  # transformers imports torchvision where it is installed
    states(Path(model_dir), json.loads(layers), Path(tokens), Path(output))


if __name__ == "__main__":
    main(*sys.argv[1:])
