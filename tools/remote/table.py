"""What `tools/bench_remote.py` prints."""

from typing import Any

from rich.table import Table


def table_of(found: dict[str, Any]) -> Table:
    table = Table("what", "found", "target", box=None)
    if one := found.get("peers"):
        for loader in one["loaders"].values():
            for title, text in _of_loader(loader):
                table.add_row(f"{loader['what']}, {title}", text, "")
        for name, why in one["left_out"].items():
            table.add_row(f"left out: {name}", why, "")
    if one := found.get("download"):
        for at in one["networks"]:
            title = f"network of {limit / 1e6:,.0f} MB/s" if (limit := at["limit_bytes_per_s"]) else "loopback"
            rates = f"{at['store_bytes_per_s'] / 1e6:,.0f} MB/s, obstore alone {at['obstore_bytes_per_s'] / 1e6:,.0f}"
            table.add_row(f"download, {title}", f"{at['ratio']:.2f} ({rates})", "0.90")
    if one := found.get("warm"):
        table.add_row("epoch from a warm cache", f"{one['ratio']:.3f} of a local folder's speed", "0.98")
    if one := found.get("limited"):
        after = f"{one['batches_later']} batches after {one['after_the_first_s']:.0f} s"
        text = f"waited for {one['waited_for']} of {after}"
        table.add_row("network of 1.2 x training", text, "1 %")
    if one := found.get("first"):
        table.add_row("first batch of a million", f"{one['all_s']:.2f} s ({one['open_s']:.2f} s to open)", "3 s")
    if one := found.get("ranks"):
        table.add_row("4 ranks: downloads of a shard", f"{one['least']:.2f} to {one['most']:.2f}", "1")
    return table


def _of_loader(one: dict[str, Any]) -> list[tuple[str, str]]:
    mb = {name: f"{one[name] / 1e6:,.0f} MB" for name in ("bytes", "resume_bytes", "resume_network_bytes")}
    return [
        ("epoch, empty cache", f"{one['cold_images_per_s']:,.0f} images/s, {mb['bytes']}"),
        ("epoch from the cache", f"{one['warm_images_per_s']:,.0f} images/s"),
        ("first batch, empty cache", f"{one['first_batch_s']:.2f} s from the start of the process"),
        ("resumes, empty cache", f"{one['resume_cold_s']:.2f} s, {mb['resume_bytes']}"),
        ("resumes over the network", f"{one['resume_network_s']:.2f} s, {mb['resume_network_bytes']}"),
        ("resumes from the cache", f"{one['resume_warm_s']:.2f} s"),
    ]
