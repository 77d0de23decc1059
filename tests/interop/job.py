"""One rank of a PyTorch job: all ranks sum up rank + 1 over gloo, and each prints what came out.

Without arguments nothing but what any PyTorch program does: init_method='env://'. `restarts`: the first attempt goes wrong after its sum;
rank 1 fails, and rank 2 is slow to notice. `prefix`: the store outlives the attempts, so that each has its keys under a prefix of its own.
"""
import datetime
import os
import select
import signal
import sys
import time

import torch
import torch.distributed as dist

LIMIT = datetime.timedelta(seconds=60)
rank, world, attempt = (int(os.environ.get(n, 0)) for n in ('RANK', 'WORLD_SIZE', 'TORCHELASTIC_RESTART_COUNT'))
goes_wrong = 'restarts' in sys.argv and attempt == 0


def say(text):
    print(text, flush=True)


if 'prefix' in sys.argv:
    plain = dist.TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), timeout=LIMIT)
    mine = dist.PrefixStore(f'attempt/{attempt}', plain)
    dist.init_process_group('gloo', store=mine, rank=rank, world_size=world, timeout=LIMIT)
else:
    dist.init_process_group('gloo', init_method='env://', timeout=LIMIT)
number = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(number)
say(f'rank {dist.get_rank()} of {dist.get_world_size()}: sum {number.item()}')

if goes_wrong and rank == 1:
    os._exit(7)
if goes_wrong and rank == 2 and 'prefix' in sys.argv:
    plain.wait(['the others are through'], LIMIT)
    say(f'late: {mine.add("arrivals", 1)}')  # in its own attempt, where nobody is any more
    os._exit(0)
if goes_wrong:
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    signal.signal(signal.SIGTERM, lambda *_: None)
    select.select([told], [], [], LIMIT.seconds)
    if rank == 2:
        time.sleep(0.5)  # longer than the others, who are gone at once
    os._exit(0)
dist.destroy_process_group()
