"""`specforge train` on a store: its own command line, with the store in front."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from specforge import cli, launch
from specforge.config import load_config

from hsstore.errors import InputError
from hsstore.integrations.command import end_with
from hsstore.integrations.specforge import StoreFeatures

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `specforge train`, and let it read the store."""
    given, rest = _parser().parse_known_args(arguments)
    features = StoreFeatures(given.store, split=given.split)
    rest = [*rest, f"data.hidden_states_path={features.samples.path}"]
    _require_processes(given.config, [part for part in rest if "=" in part and part[0] != "-"])
    launch.build_offline_runtime = partial(_offline_runtime, features)
    try:
        status: int = cli.main(["train", "-c", given.config, *rest])
    except ValueError as error:
        if "no offline feature files" not in str(error):
            raise
        raise InputError(
            f"{given.config}: model.vocab_mapping_path is not set, and SpecForge would count tokens in "
            "files: python -m hsstore.integrations.prepare makes that map from the store"
        ) from error
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hsstore.integrations.specforge",
        description="Run `specforge train` on a store; all other arguments go to it.",
    )
    parser.add_argument("store", help="data.hidden_states_path is set to it")
    parser.add_argument("-c", "--config", required=True, help="SpecForge's YAML or JSON file")
    parser.add_argument("--split", help="train on samples of this split alone")
    return parser


def _require_processes(config: str, overrides: list[str]) -> None:
    """Refuse to let SpecForge start processes by itself: they would know nothing of a store."""
    trainer = load_config(config, overrides).deployment.trainer
    if trainer.nnodes * trainer.nproc_per_node > 1 and "RANK" not in os.environ:
        raise InputError(
            f"{config} asks for {trainer.nnodes} nodes of {trainer.nproc_per_node} processes: start them "
            "with torchrun -m hsstore.integrations.specforge"
        )


def _offline_runtime(features: StoreFeatures, /, **options: Any) -> Any:  # noqa: ANN401  # SpecForge's
    """Stand in for `specforge.launch.build_offline_runtime`: the same options, other samples."""
    options.pop("hidden_states_path")
    refs = features.refs(
        run_id=options["run_id"], ttt_length=options["ttt_length"], max_len=options["max_len"]
    )
    return launch.build_disagg_offline_runtime(feature_store=features, refs=refs, **options)


if __name__ == "__main__":
    end_with(main)
