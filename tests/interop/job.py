"""One rank of a plain PyTorch job: all ranks sum up rank + 1 over gloo, and each prints what came out. 77: cannot run here."""
import datetime
import sys

try:
    import torch
    import torch.distributed as dist
except ImportError as e:
    print(f'no PyTorch: {e}', flush=True)
    sys.exit(77)
if not dist.is_available() or not dist.is_gloo_available():
    print('this PyTorch has no gloo', flush=True)
    sys.exit(77)

dist.init_process_group('gloo', init_method='env://', timeout=datetime.timedelta(seconds=60))
number = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(number)
print(f'rank {dist.get_rank()} of {dist.get_world_size()}: sum {number.item()}', flush=True)
dist.destroy_process_group()
