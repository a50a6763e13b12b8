"""What annotation tools write, of their documented shapes: the same boxes of three images in each form.

Of a: a cat and a dog; of b: a dog; of c: nothing. Images are 100 × 50 pixels.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from images import encode, photo

NAMES = ["cat", "dog"]
IMAGES = {name: encode(photo(number, 100, 50)) for number, name in enumerate(["a.jpg", "b.jpg", "c.jpg"])}
BOXES: dict[str, list[tuple[str, int, int, int, int]]] = {
    "a": [("cat", 10, 5, 30, 25), ("dog", 60, 20, 100, 50)],
    "b": [("dog", 0, 0, 50, 25)],
    "c": [],
}
Files = dict[str, bytes]


def at(folder: str, names: str = "abc") -> Files:
    return {f"{folder}/{name}.jpg".lstrip("/"): IMAGES[f"{name}.jpg"] for name in names}


def of_each(pattern: str, write: Callable[[str], bytes], names: str = "abc") -> Files:
    """A file for each image."""
    return {pattern.format(name): write(name) for name in names}


def document(content: Any) -> bytes:
    return json.dumps(content).encode()


def lines(entries: Sequence[Any]) -> bytes:
    return b"\n".join(map(document, entries)) + b"\n"


def sized(box: tuple[str, int, int, int, int]) -> list[int]:
    """x y width height."""
    _, x0, y0, x1, y1 = box
    return [x0, y0, x1 - x0, y1 - y0]


def shares(box: tuple[str, int, int, int, int]) -> list[float]:
    """x y width height in shares of the image."""
    x, y, width, height = sized(box)
    return [x / 100, y / 50, width / 100, height / 50]


def labelme(name: str) -> bytes:
    shapes = [
        {"label": box[0], "points": [[box[1], box[4]], [box[3], box[2]]], "group_id": None, "shape_type": "rectangle", "flags": {}}
        for box in BOXES[name]
    ]  # fmt: skip
    head = {"version": "6.3.1", "flags": {}, "shapes": shapes, "imagePath": f"{name}.jpg", "imageData": None}
    return document({**head, "imageHeight": 50, "imageWidth": 100})


def label_studio_task(name: str) -> dict[str, Any]:
    results = []
    for box in BOXES[name]:
        x, y, width, height = (100 * share for share in shares(box))
        value = {"x": x, "y": y, "width": width, "height": height, "rotation": 0, "rectanglelabels": [box[0]]}
        names = {"from_name": "label", "to_name": "image", "type": "rectanglelabels"}
        results.append({"original_width": 100, "original_height": 50, "image_rotation": 0, "value": value, **names})
    done = {"id": 1, "was_cancelled": False, "result": results}
    return {"id": ord(name), "annotations": [done], "data": {"image": f"/data/upload/1/1a2b3c4d-{name}.jpg"}}


def label_studio_minimal(name: str) -> dict[str, Any]:
    task = label_studio_task(name)
    sizes = {"original_width": 100, "original_height": 50}
    values = [{**result["value"], **sizes} for result in task["annotations"][0]["result"]]
    task = {"image": task["data"]["image"], "id": task["id"], "annotator": 1, "annotation_id": 3, "lead_time": 4.5}
    return task | ({"label": values} if values else {})


def via() -> dict[str, Any]:
    entries = {}
    for name, boxes in BOXES.items():
        regions = []
        for box in boxes:
            x, y, width, height = sized(box)
            form = {"name": "rect", "x": x, "y": y, "width": width, "height": height}
            regions.append({"shape_attributes": form, "region_attributes": {"animal": box[0]}})
        entries[f"{name}.jpg123"] = {"filename": f"{name}.jpg", "size": 123, "regions": regions, "file_attributes": {}}
    return entries


def cvat() -> bytes:
    labels = "".join(f"<label><name>{name}</name><attributes></attributes></label>" for name in NAMES)
    images = ""
    for number, (name, boxes) in enumerate(BOXES.items()):
        inside = "".join(
            f'<box label="{label}" source="manual" occluded="0" xtl="{x0}.00" ytl="{y0}.00" xbr="{x1}.00" ybr="{y1}.00" z_order="0"></box>'
            for label, x0, y0, x1, y1 in boxes
        )  # fmt: skip
        images += f'<image id="{number}" name="{name}.jpg" width="100" height="50">{inside}</image>'
    meta = f"<meta><job><id>1</id><labels>{labels}</labels></job></meta>"
    text = f'<?xml version="1.0" encoding="utf-8"?>\n<annotations><version>1.1</version>{meta}{images}</annotations>'
    return text.encode()


def datumaro(names: str = "abc") -> bytes:
    items = []
    for name in names:
        boxes = [
            {"id": number, "type": "bbox", "label_id": NAMES.index(box[0]), "group": 0, "bbox": sized(box), "attributes": {}, "z_order": 0}
            for number, box in enumerate(BOXES[name])
        ]  # fmt: skip
        image = {"path": f"{name}.jpg", "size": [50, 100]}
        items.append({"id": name, "annotations": boxes, "attr": {}, "image": image})
    labels = [{"name": name, "parent": "", "attributes": []} for name in NAMES]
    head = {"dm_format_version": "1.0", "media_type": 2, "infos": {}, "categories": {"label": {"labels": labels}}}
    return document({**head, "items": items})


def fiftyone_boxes() -> bytes:
    labels = {
        name: [{"label": NAMES.index(box[0]), "bounding_box": shares(box)} for box in boxes] or None
        for name, boxes in BOXES.items()
    }
    return document({"classes": NAMES, "labels": labels})


def fiftyone_samples() -> bytes:
    samples = []
    for name, boxes in BOXES.items():
        detections = [
            {"_cls": "Detection", "label": box[0], "bounding_box": shares(box), "attributes": {}} for box in boxes
        ]
        truth = {"_cls": "Detections", "detections": detections} if boxes else None
        metadata = {"_cls": "ImageMetadata", "width": 100, "height": 50}
        samples.append({"filepath": f"data/{name}.jpg", "tags": [], "metadata": metadata, "ground_truth": truth})
    return document({"samples": samples})


def ndjson(task: str = "detect") -> bytes:
    names = dict(enumerate(NAMES))
    entries: list[Any] = [{"type": "dataset", "task": task, "name": "pets", "class_names": names}]
    for name, split in zip("abc", ("train", "train", "val"), strict=True):
        rows = []
        for box in BOXES[name]:
            x, y, width, height = shares(box)
            rows.append([NAMES.index(box[0]), x + width / 2, y + height / 2, width, height])
        head = {
            "type": "image",
            "file": f"{name}.jpg",
            "url": f"https://example.com/{name}.jpg",
            "width": 100,
            "height": 50,
        }
        entries.append({**head, "split": split, "annotations": {"boxes": rows} if rows else {}})
    return lines(entries)


def crowdhuman() -> bytes:
    entries = [
        {"ID": name, "gtboxes": [{"tag": "person", "fbox": sized(box), "hbox": [1, 1, 2, 2], "vbox": sized(box), "extra": {"box_id": 0}} for box in boxes]}
        for name, boxes in BOXES.items()
    ]  # fmt: skip
    return lines(entries)


def createml(names: str = "abc") -> bytes:
    entries = []
    for name in names:
        boxes = []
        for label, x0, y0, x1, y1 in BOXES[name]:
            box = {"x": (x0 + x1) / 2, "y": (y0 + y1) / 2, "width": x1 - x0, "height": y1 - y0}
            boxes.append({"label": label, "coordinates": box})
        entries.append({"image": f"{name}.jpg", "annotations": boxes})
    return document(entries)


def bdd(names: str) -> bytes:
    """As BDD100K's det_20, where an image without an object has no labels, and lanes are lines."""
    lane = {"category": "lane/single white", "poly2d": [{"vertices": [[1, 1], [9, 9]], "types": "LL", "closed": False}]}
    frames = []
    for name in names:
        labels: list[Any] = [lane]
        for label, *corners in BOXES[name]:
            box = dict(zip(("x1", "y1", "x2", "y2"), corners, strict=True))
            labels.append({"id": "0", "attributes": {"occluded": False}, "category": label, "box2d": box})
        frame = {"name": f"{name}.jpg", "attributes": {"weather": "clear"}, "timestamp": 10000}
        frames.append({**frame, "labels": labels} if BOXES[name] else frame)
    return document(frames)


def kitti(name: str) -> bytes:
    rest = "-1.00 -1.00 -1.00 -1000.00 -1000.00 -1000.00 -10.00"
    rows = [f"{label} 0.00 0 -10.00 {x0}.00 {y0}.00 {x1}.00 {y1}.00 {rest}\n" for label, x0, y0, x1, y1 in BOXES[name]]
    return "".join(rows).encode()


def visdrone(name: str) -> bytes:
    numbers = {"cat": 4, "dog": 5}
    return "".join(f"{','.join(map(str, sized(box)))},1,{numbers[box[0]]},0,0\n" for box in BOXES[name]).encode()


def wider() -> bytes:
    text = ""
    for name, boxes in BOXES.items():
        rows = [f"{' '.join(map(str, sized(box)))} 0 0 0 0 0 0 \n" for box in boxes] or ["0 0 0 0 0 0 0 0 0 0 \n"]
        text += f"0--Parade/{name}.jpg\n{len(boxes)}\n{''.join(rows)}"
    return text.encode()


def mot(first: int = 3) -> bytes:
    """first: the number of the first class."""
    text = ""
    for frame, boxes in enumerate(BOXES.values(), 1):
        text += "".join(
            f"{frame},1,{','.join(map(str, sized(box)))},1,{first + NAMES.index(box[0])},1.0\n" for box in boxes
        )
    return (text + "3,9,1,1,5,5,0,1,0.2\n").encode()


MOT_FRAMES = {f"train/MOT17-02-FRCNN/img1/{number:06d}.jpg": data for number, data in enumerate(IMAGES.values(), 1)}


def table(head: str, rows: Sequence[str]) -> bytes:
    return "\n".join([head, *rows, ""]).encode()


def roboflow_csv(names: str = "abc") -> bytes:
    rows = [f"{name}.jpg,100,50,{','.join(map(str, box))}" for name in names for box in BOXES[name]]
    return table("filename,width,height,class,xmin,ymin,xmax,ymax", rows)


def open_images() -> bytes:
    rows = []
    for name, boxes in BOXES.items():
        for label, x0, y0, x1, y1 in boxes:
            rows.append(f"{name},xclick,/m/{label},1,{x0 / 100},{x1 / 100},{y0 / 50},{y1 / 50},0,0,0,0,0")
    head = (
        "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
    )
    return table(head, rows)


OPEN_IMAGES_NAMES = b"/m/cat,cat\n/m/dog,dog\n"


def via_csv() -> bytes:
    rows = []
    for entry in via().values():
        for number, region in enumerate(entry["regions"] or [{"shape_attributes": {}, "region_attributes": {}}]):
            cells = [json.dumps(region[key]).replace('"', '""') for key in ("shape_attributes", "region_attributes")]
            rows.append(f'{entry["filename"]},123,"{{}}",{len(entry["regions"])},{number},"{cells[0]}","{cells[1]}"')
    return table(
        "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes", rows
    )


def wheat() -> bytes:
    """Kaggle's global wheat detection, with a class."""
    rows = [
        f'{name},100,50,"[{", ".join(f"{side}.0" for side in sized(box))}]",{box[0]}'
        for name in BOXES
        for box in BOXES[name]
    ]
    return table("image_id,width,height,bbox,class", rows)


def vinbig() -> bytes:
    rows = [
        f"{name},{box[0]},{NAMES.index(box[0])},R1,{','.join(map(str, box[1:]))}"
        for name in BOXES
        for box in BOXES[name]
    ]
    return table("image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max", [*rows, "c,,,R1,,,,"][: len(rows)])


def runs(by_rows: bool = False) -> bytes:
    """Kaggle's masks: the boxes, column by column from 1."""
    rows = []
    for name, boxes in BOXES.items():
        for label, x0, y0, x1, y1 in boxes:
            starts = [f"{x * 50 + y0 + 1} {y1 - y0}" for x in range(x0, x1)]
            if by_rows:
                starts = [f"{y * 100 + x0 + 1} {x1 - x0}" for y in range(y0, y1)]
            rows.append(f"{name}.jpg,{label},{' '.join(starts)}")
    return table("ImageId,class,EncodedPixels", [*rows, "c.jpg,,"])


def wider_with_names() -> bytes:
    """As Datumaro 1.13 writes it: classes after boxes, and no count where there is none."""
    text = ""
    for name, boxes in BOXES.items():
        rows = [f"{' '.join(map(str, map(float, sized(box))))} {box[0]}\n" for box in boxes]
        text += f"no_label/{name}.jpg\n" + (f"{len(boxes)}\n" if boxes else "") + "".join(rows)
    return text.encode()


def labelme_xml(name: str) -> bytes:
    objects = ""
    for label, x0, y0, x1, y1 in BOXES[name]:
        points = "".join(f"<pt><x>{x}</x><y>{y}</y></pt>" for x, y in ((x0, y0), (x1, y0), (x1, y1), (x0, y1)))
        kind = "<type>bounding_box</type>"
        objects += f"<object><name>{label}</name><deleted>0</deleted>{kind}<polygon>{points}</polygon></object>"
    size = "<imagesize><nrows>50</nrows><ncols>100</ncols></imagesize>"
    head = f"<filename>{name}.jpg</filename><folder>train</folder>{size}"
    return f"<annotation>{head}{objects}</annotation>".encode()


def nearly_coco(kind: str) -> bytes:
    """COCO's JSON as others write it: LVIS and Objects365, Label Studio with paths of its machine, panoptic segments."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    names: dict[str, Any] = {
        "lvis": {"coco_url": "http://images.cocodataset.org/train2017/{}.jpg", "neg_category_ids": []},
        "objects365": {"file_name": "images/v1/patch8/{}.jpg", "url": ""},
        "label-studio": {"file_name": "images\\{}.jpg"},
        "panoptic": {"file_name": "{}.jpg"},
    }[kind]
    for number, (name, boxes) in enumerate(BOXES.items()):
        own = {key: value.format(name) if isinstance(value, str) else value for key, value in names.items()}
        images.append({"id": number, "width": 100, "height": 50, **own})
        found: list[dict[str, Any]] = []
        for box in boxes:
            entry = {
                "id": len(found) + 1,
                "category_id": 7 + NAMES.index(box[0]),
                "bbox": sized(box),
                "iscrowd": 0,
                "area": 9,
            }
            of_image = {"id": len(annotations) + len(found) + 1, "image_id": number}
            found.append(entry if kind == "panoptic" else {**entry, **of_image})
        if kind == "panoptic":
            found = [{"image_id": number, "file_name": f"{name}.png", "segments_info": found}]
        annotations += found
    categories = [{"id": 7 + number, "name": name, "isthing": 1} for number, name in enumerate(NAMES)]
    return document({"images": images, "annotations": annotations, "categories": categories})
