"""Lets SGLang be imported on a machine without a GPU: three packages of its GPU stack are there in name only.

What is taken from them is a class that does nothing. `find_spec` goes on saying that they are absent, so that packages
which ask before they use them (transformers asks for torchvision) leave them alone.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

ABSENT = frozenset({"sgl_kernel", "soundfile", "torchvision"})
_find_spec = importlib.util.find_spec


class Inert(type):
    """A class whose attributes are inert classes."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return inert(name)


def inert(name):
    """A class that takes anything and does nothing."""
    body = {"__init__": lambda self, *a, **k: None, "__call__": lambda self, *a, **k: None}
    return Inert(name, (), body)


class InertModule(types.ModuleType):
    """A package of inert classes."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = inert(name)
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the absent packages."""

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return InertModule(spec.name)

    def exec_module(self, module):
        pass


class Megatron(importlib.abc.MetaPathFinder):
    """Looks after the modules of megatron as they are imported: see `gyre_cpu_megatron`."""

    busy = False

    def find_spec(self, name, path, target=None):
        if self.busy or not name.startswith("megatron."):
            return None
        self.busy = True
        try:
            spec = _find_spec(name)
        finally:
            self.busy = False
        if spec is not None and spec.loader is not None:
            import gyre_cpu_megatron

            gyre_cpu_megatron.look_after(spec)
        return spec


def find_spec(name, package=None):
    """As importlib's, but the absent are absent."""
    return None if name.partition(".")[0] in ABSENT else _find_spec(name, package)


sys.meta_path.append(Finder())
sys.meta_path.insert(0, Megatron())
importlib.util.find_spec = find_spec
