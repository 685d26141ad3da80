"""Keep torch_xla from configuring the root logger, which belongs to the program.

Importing torch_xla calls logging.basicConfig(), and so does a warning of torch_xla.runtime, which
goes to the root logger. After that, the program's own logging.basicConfig(level=logging.INFO) would
have no effect.
"""

import logging
from types import ModuleType

import torch_xla


def remove_handlers() -> None:
    """Remove the handlers that the import of torch_xla added. A second call does nothing."""
    before = torch_xla._XLAC.__dict__.pop("_root_log_handlers", None)
    if before is None:
        return
    for handler in list(logging.root.handlers):
        if handler not in before and type(handler) is logging.StreamHandler:
            logging.root.removeHandler(handler)


def logger(_: ModuleType) -> logging.Logger:
    """Return the object that torch_xla.runtime uses as the module `logging`.

    Its warnings appear even without a handler: Python writes them to stderr.
    """
    return logging.getLogger("torch_xla")
