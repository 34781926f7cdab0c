"""Engines that run a model here and speak the part of SGLang's HTTP interface the client uses."""
