"""A plugin of SGLang (entry point group `sglang.srt.plugins`) for machines without a GPU.

Hierarchical caching and the capture of routed experts register host memory with CUDA and copy pages with CUDA kernels:
here nothing is registered, and the copies are torch's own.
"""


def register():
    """Called by SGLang in each of its processes."""
    import torch

    if torch.cuda.is_available():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    host = "sglang.srt.mem_cache.pool_host.common."
    HookRegistry.register(host + "_cuda_host_register", lambda buffer, granularity=None: None, HookType.REPLACE)
    HookRegistry.register(host + "_cuda_host_unregister", lambda buffer: None, HookType.REPLACE)
    _copy_with_torch()
    _pin_nothing()


def _copy_with_torch():
    from sglang.srt.mem_cache.pool_host import mha

    def layers(sources, targets, source_indices, target_indices, page_size):
        for source, target in zip(sources, targets, strict=True):
            target[target_indices] = source[source_indices].to(target.dtype)

    def load_layer(sources, targets, source_indices, target_indices, layer, page_size):
        page, place = source_indices // page_size, source_indices % page_size
        for source, target in zip(sources, targets, strict=True):
            target[target_indices] = source[page, layer, place].reshape(target[target_indices].shape)

    def store_layers(sources, targets, source_indices, target_indices, page_size):
        page, place = target_indices // page_size, target_indices % page_size
        each = len(sources) // len(targets)
        for number, target in enumerate(targets):
            for layer in range(each):
                found = sources[number * each + layer][source_indices]
                target[page, layer, place] = found.reshape(target[page, layer, place].shape)

    mha.transfer_kv_direct = layers
    mha.transfer_kv_per_layer_direct_pf_lf = load_layer
    mha.transfer_kv_all_layer_direct_lf_pf = store_layers


def _pin_nothing():
    from sglang.srt.mem_cache.pool_host.base import HostKVCache

    begin = HostKVCache.__init__

    def unpinned(self, *given, **named):
        begin(self, *given, **named)
        self.pin_memory = False

    HostKVCache.__init__ = unpinned
