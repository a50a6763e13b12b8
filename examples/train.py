"""Trains a small convolutional net on packed images: a loop to read and to copy from.

    python -m gpuload pack photos shards --val 0.1
    python examples/train.py shards --epochs 5 --checkpoint run.pt
    python examples/train.py shards --epochs 5 --checkpoint run.pt --resume  # goes on with the next batch

Ctrl-C saves the run after the current batch and ends it. The net, options and checkpoints are in
training.py. For several GPUs see ddp.py.
"""

import sys

import torch
import torch.nn.functional as F
from training import Run, accuracy, make_net, run_program

import gpuload


def train(run: Run) -> None:
    """Trains until all epochs are done, or Ctrl-C was pressed."""
    args = run.args
    options = {"batch_size": args.batch_size, "device": args.device}
    crop = gpuload.RandomResizedCrop(scale=(args.min_scale, 1.0))
    augment = gpuload.Augment(args.size, crop=crop, flip=args.flip)
    loader = gpuload.DaliIterator(args.shards / "train", augment=augment, **options)
    center = gpuload.Augment(args.size, crop="center")
    val = gpuload.DaliIterator(
        args.shards / "val", augment=center, shuffle=False, **options
    )
    torch.manual_seed(0)
    net = make_net(loader.num_classes).to(loader.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    run.hold(net=net, optimizer=optimizer, loader=loader)  # with --resume, as saved
    if args.preview:
        loader.preview(64).save(args.preview)

    for epoch in run.epochs_after(loader.state_dict()["epoch"]):
        for step, (images, labels) in enumerate(loader, start=1):
            loss = F.cross_entropy(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if run.is_stopped or step % 100 == 0:
                run.save()
            if run.is_stopped:
                return
        rate = loader.metrics(window=1000).images_per_s  # of the last batches
        print(
            f"epoch {epoch + 1} of {args.epochs}: {rate:,.0f} images/s, accuracy {accuracy(net, val):.1%}"
        )
        run.save()


def main(argv: list[str]) -> int:
    return run_program(train, argv, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
