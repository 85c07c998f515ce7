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

    def layers(src_layers, dst_layers, src_indices, dst_indices, page_size):
        for source, target in zip(src_layers, dst_layers, strict=True):
            target[dst_indices] = source[src_indices].to(target.dtype)

    def load_layer(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size):
        page, place = src_indices // page_size, src_indices % page_size
        for source, target in zip(src_ptrs, dst_ptrs, strict=True):
            target[dst_indices] = source[page, layer_id, place].reshape(target[dst_indices].shape)

    def store_layers(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
        page, place = dst_indices // page_size, dst_indices % page_size
        each = len(src_ptrs) // len(dst_ptrs)
        for number, target in enumerate(dst_ptrs):
            for layer in range(each):
                found = src_ptrs[number * each + layer][src_indices]
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
