"""Lets megatron-core 0.16 run on a machine without a GPU: what it asks of CUDA is answered by the CPU.

Inside megatron's modules, and there alone, the name `torch` stands for `CpuTorch`: patching torch itself would break
others, who ask it for devices too. Nothing that computes is replaced.
"""

import contextlib
import types

import torch

FACTORIES = frozenset({
    "arange", "as_tensor", "empty", "empty_like", "full", "full_like", "linspace", "ones", "ones_like", "rand",
    "randint", "randn", "tensor", "zeros", "zeros_like",
})  # fmt: skip


class Inert:
    """A stream or an event: everything has happened already."""

    def __init__(self, *given, **named):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *given):
        return False

    def __getattr__(self, name):
        return lambda *given, **named: self


class CpuCuda(types.ModuleType):
    """`torch.cuda` of one device, which is the CPU."""

    Stream = Event = Inert

    def __getattr__(self, name):
        return getattr(torch.cuda, name)

    @staticmethod
    def current_device():
        return torch.device("cpu")

    @staticmethod
    def set_device(device):
        pass

    @staticmethod
    def synchronize(device=None):
        pass

    @staticmethod
    def empty_cache():
        pass

    @staticmethod
    def current_stream(device=None):
        return Inert()

    default_stream = current_stream

    @staticmethod
    def stream(stream=None):
        return contextlib.nullcontext()

    @staticmethod
    def get_rng_state(device="cuda"):
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state, device="cuda"):
        torch.set_rng_state(state)

    @staticmethod
    def manual_seed(seed):
        torch.manual_seed(seed)


class CpuTorch(types.ModuleType):
    """`torch` whose tensors are made on the CPU, whatever device is named."""

    def __getattr__(self, name):
        found = getattr(torch, name)
        if name not in FACTORIES:
            return found

        def on_cpu(*given, **named):
            if str(named.get("device") or "").startswith("cuda"):
                named["device"] = "cpu"
            named.pop("pin_memory", None)
            return found(*given, **named)

        setattr(self, name, on_cpu)
        return on_cpu


TORCH = CpuTorch("torch")
TORCH.cuda = CpuCuda("torch.cuda")


def look_after(spec):
    """Amend this module once it was executed."""
    execute = getattr(spec.loader, "exec_module", None)
    if execute is None or torch.cuda.is_available():
        return

    def amended(module):
        execute(module)
        if module.__dict__.get("torch") is torch:
            module.torch = TORCH
        AMEND.get(module.__name__, lambda module: None)(module)

    spec.loader.exec_module = amended


def _no_compiler(module):
    module.jit_fuser = module.noop_decorator


def _generator(module):
    module._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    module._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)


def _experts(module):
    """Sizes are told to gloo as numbers, not as a tensor."""
    moved = module.maybe_move_tensor_to_cpu

    def on_cpu(tensor, as_numpy=False, record_stream=False):
        found = moved(tensor, as_numpy, record_stream)
        return found.numpy() if as_numpy and torch.is_tensor(found) else found

    module.maybe_move_tensor_to_cpu = on_cpu


AMEND = {
    "megatron.core.jit": _no_compiler,
    "megatron.core.tensor_parallel.random": _generator,
    "megatron.core.transformer.moe.moe_utils": _experts,
}

if not torch.cuda.is_available():  # both would raise, and a tensor is where it has to be
    torch.Tensor.cuda = lambda self, *given, **named: self
    torch.nn.Module.cuda = lambda self, *given, **named: self
