"""Writes what annotation tools export of `true_drawings`, each tool in an environment of its own.

    python-with-supervision tests/sources/regenerate_exports.py supervision     # supervision 0.31.2, OpenCV
    python-with-globox tests/sources/regenerate_exports.py globox               # globox 2.9.0
    python-with-sahi tests/sources/regenerate_exports.py sahi                   # sahi 0.12.8
    python-with-label-studio tests/sources/regenerate_exports.py label_studio   # label-studio-sdk 2.1.2
    python-with-pascal tests/sources/regenerate_exports.py pascal_voc_writer    # pascal-voc-writer 0.1.4
    python-with-labelformat tests/sources/regenerate_exports.py labelformat     # labelformat 0.1.17
    python-with-pylabel tests/sources/regenerate_exports.py pylabel             # pylabel 0.1.55, pandas < 3
    python-with-datumaro tests/sources/regenerate_exports.py datumaro           # datumaro 1.13.12
    python-with-ultralytics tests/sources/regenerate_exports.py ultralytics     # ultralytics 8.4.190
    python-with-fiftyone tests/sources/regenerate_exports.py fiftyone           # fiftyone 1.22.1, MongoDB

Each writes `exports/<tool>.json`: of every export the texts, and which image lay where. Change them only for a newer version of
a tool whose files differ. From run to run there differ dates (supervision, Label Studio, FiftyOne), and of FiftyOne ids, `_rand`
and the order of fields in metadata.json, none of which is packed.
"""

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from true_drawings import CLASSES, EXPORTS, OBJECTS, SIZES, SPLITS, WHOLE, collect, encoded

PACKAGES = {"label_studio": "label-studio-sdk", "pascal_voc_writer": "pascal-voc-writer"}


def write_images(folder: Path, names: str = "abcd") -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.jpg" for name in names]
    for path in paths:
        path.write_bytes(encoded(path.stem, path.name))
    return paths


def mask_of(name: str, polygon: tuple[int, ...]) -> np.ndarray:
    """bool (height, width), without the pixels of the right and lower edge."""
    canvas = Image.new("L", SIZES[name])
    points = list(zip(polygon[0::2], polygon[1::2], strict=True))
    right = max(polygon[0::2])
    bottom = max(polygon[1::2])
    ImageDraw.Draw(canvas).polygon([(x - (x == right), y - (y == bottom)) for x, y in points], fill=1)
    return np.asarray(canvas) > 0


def coco_document(first: int = 1, names: str = "abcd") -> dict[str, Any]:
    """COCO's JSON, from which converters start."""
    images = []
    annotations = []
    for number, name in enumerate(names, 1):
        width, height = SIZES[name]
        images.append({"id": number, "file_name": f"{name}.jpg", "width": width, "height": height})
        for thing in OBJECTS[name]:
            x0, y0, x1, y1 = thing.box
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": CLASSES.index(thing.label) + first,
                    "bbox": [x0, y0, x1 - x0, y1 - y0],
                    "area": (x1 - x0) * (y1 - y0),
                    "iscrowd": 0,
                    "segmentation": [list(thing.polygon)],
                }
            )
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES, first)]
    return {"images": images, "annotations": annotations, "categories": categories}


def supervision(root: Path) -> None:
    import supervision as sv

    images = write_images(root.parent / "in")

    def data_set(names: str, with_masks: bool = False) -> Any:
        chosen = [str(path) for path in images if path.stem in names]
        annotations = {}
        for path in chosen:
            things = OBJECTS[Path(path).stem]
            if not things:
                annotations[path] = sv.Detections.empty()
                continue
            annotations[path] = sv.Detections(
                xyxy=np.array([thing.box for thing in things], float),
                class_id=np.array([CLASSES.index(thing.label) for thing in things]),
                mask=np.stack([mask_of(Path(path).stem, thing.polygon) for thing in things]) if with_masks else None,
            )
        return sv.DetectionDataset(classes=list(CLASSES), images=chosen, annotations=annotations)

    whole = data_set("abcd")
    out = root / "coco"
    whole.as_coco(images_directory_path=str(out / "images"), annotations_path=str(out / "annotations.json"))
    out = root / "voc"
    whole.as_pascal_voc(images_directory_path=str(out / "images"), annotations_directory_path=str(out / "annotations"))
    out = root / "yolo"
    whole.as_yolo(str(out / "images"), str(out / "labels"), str(out / "data.yaml"))
    masks = data_set("abcd", with_masks=True)
    out = root / "coco masks"
    masks.as_coco(images_directory_path=str(out / "images"), annotations_path=str(out / "annotations.json"))
    out = root / "yolo masks"
    masks.as_yolo(str(out / "images"), str(out / "labels"), str(out / "data.yaml"))
    for split, names in (("train", "ab"), ("valid", "cd")):
        part = data_set(names)
        out = root / "coco splits" / split
        part.as_coco(images_directory_path=str(out / "images"), annotations_path=str(out / "annotations.json"))
        out = root / "yolo splits" / split
        part.as_yolo(str(out / "images"), str(out / "labels"), str(out.parent / "data.yaml"))
    whole.as_createml(str(root / "createml" / "images"), str(root / "createml" / "annotations.json"))
    whole.as_labelme(str(root / "labelme" / "images"), str(root / "labelme" / "annotations"))
    named = {str(path): sv.Classifications(class_id=np.array([CLASSES.index(WHOLE[path.stem])])) for path in images[:3]}
    classes = sv.ClassificationDataset(classes=list(CLASSES), images=list(named), annotations=named)
    classes.as_folder_structure(str(root / "class folders"))


def globox(root: Path) -> None:
    from globox import Annotation, AnnotationSet, BoundingBox

    images = write_images(root.parent / "in")
    every = AnnotationSet()
    for path in images:
        boxes = []
        for thing in OBJECTS[path.stem]:
            x0, y0, x1, y1 = thing.box
            boxes.append(BoundingBox(label=thing.label, xmin=x0, ymin=y0, xmax=x1, ymax=y1))
        every.add(Annotation(path.name, SIZES[path.stem], boxes))
    numbers = {name: number for number, name in enumerate(CLASSES)}
    write_images(root / "coco" / "images")
    every.save_coco(root / "coco" / "coco.json", auto_ids=True)
    write_images(root / "coco numbered" / "images")
    images_to_ids = {path.name: number for number, path in enumerate(images)}
    every.save_coco(root / "coco numbered" / "coco.json", label_to_id=numbers, imageid_to_id=images_to_ids)
    write_images(root / "voc" / "images")
    every.save_pascal_voc(root / "voc" / "annotations")
    write_images(root / "xml" / "images")
    every.save_xml(root / "xml" / "annotations")
    yolo = (("darknet", every.save_yolo_darknet), ("yolo 5", every.save_yolo_v5), ("yolo 7", every.save_yolo_v7))
    for form, save in yolo:
        write_images(root / form / "images")
        save(root / form / "labels", label_to_id=numbers)
    write_images(root / "labelme")
    every.save_labelme(root / "labelme")
    write_images(root / "cvat" / "images")
    every.save_cvat(root / "cvat" / "annotations.xml")
    write_images(root / "open images" / "images")
    every.save_openimage(root / "open images" / "boxes.csv")
    write_images(root / "via" / "images")
    every.save_via_json(root / "via" / "via.json", image_folder=root.parent / "in")
    write_images(root / "txt" / "images")
    every.save_txt(root / "txt" / "labels")


def sahi(root: Path) -> None:
    from sahi.utils.coco import Coco, CocoAnnotation, CocoCategory, CocoImage
    from sahi.utils.file import save_json

    coco = Coco(image_dir=str(root / "coco" / "images"))
    for number, name in enumerate(CLASSES):
        coco.add_category(CocoCategory(id=number, name=name))
    for path in write_images(root / "coco" / "images"):
        width, height = SIZES[path.stem]
        image = CocoImage(file_name=path.name, height=height, width=width)
        for thing in OBJECTS[path.stem]:
            x0, y0, x1, y1 = thing.box
            image.add_annotation(
                CocoAnnotation(
                    bbox=[x0, y0, x1 - x0, y1 - y0],
                    category_id=CLASSES.index(thing.label),
                    category_name=thing.label,
                )
            )
        coco.add_image(image)
    save_json(coco.json, str(root / "coco" / "coco.json"))
    coco.export_as_yolo(str(root / "yolo"), train_split_rate=0.5, numpy_seed=0, disable_symlink=True)
    write_images(root / "coco splits" / "images")
    parts = coco.split_coco_as_train_val(train_split_rate=0.5, numpy_seed=0)
    for split in ("train", "val"):
        save_json(parts[f"{split}_coco"].json, str(root / "coco splits" / f"{split}.json"))


LABEL_STUDIO = (
    """<View><Image name="image" value="$image"/><{kind} name="label" toName="image">{labels}</{kind}></View>"""
)


def label_studio_task(name: str, kind: str) -> dict[str, Any]:
    """A task as the tool's own database exports it, from which its converter makes all other forms."""
    width, height = SIZES[name]
    results = []
    things = OBJECTS[name] if kind != "choices" else []
    for number, thing in enumerate(things):
        x0, y0, x1, y1 = thing.box
        if kind == "polygonlabels":
            points = zip(thing.polygon[0::2], thing.polygon[1::2], strict=True)
            value: dict[str, Any] = {"points": [[100 * x / width, 100 * y / height] for x, y in points], "closed": True}
        elif kind == "brushlabels":
            from label_studio_sdk.converter.brush import mask2rle

            mask = mask_of(name, thing.polygon).astype(np.uint8) * 255
            value = {"format": "rle", "rle": [int(byte) for byte in mask2rle(mask)]}
        else:
            value = {
                "x": 100 * x0 / width,
                "y": 100 * y0 / height,
                "width": 100 * (x1 - x0) / width,
                "height": 100 * (y1 - y0) / height,
                "rotation": 0,
            }
        value[kind] = [thing.label]
        sizes = {"original_width": width, "original_height": height, "image_rotation": 0}
        ends = {"from_name": "label", "to_name": "image", "type": kind, "origin": "manual"}
        results.append({"id": f"r{number}", **sizes, **ends, "value": value})
    if kind == "choices" and name in WHOLE:
        value = {"choices": [WHOLE[name]]}
        results.append({"id": "c", "from_name": "label", "to_name": "image", "type": kind, "value": value})
    done = {"id": ord(name), "completed_by": 1, "was_cancelled": False, "result": results, "lead_time": 3.5}
    return {"id": ord(name), "annotations": [done], "data": {"image": f"/data/upload/1/{name}.jpg"}}


def label_studio(root: Path) -> None:
    from label_studio_sdk.converter import Converter

    kinds = {
        "masks": ("BrushLabels", "Label", "brushlabels"),
        "boxes": ("RectangleLabels", "Label", "rectanglelabels"),
        "polygons": ("PolygonLabels", "Label", "polygonlabels"),
        "classes": ("Choices", "Choice", "choices"),
    }
    for title, (tag, entry, kind) in kinds.items():
        labels = "".join(f'<{entry} value="{name}"/>' for name in CLASSES)
        converter = Converter(LABEL_STUDIO.format(kind=tag, labels=labels), str(root.parent))
        tasks = root.parent / f"{title}.json"
        tasks.write_text(json.dumps([label_studio_task(name, kind) for name in "abcd"]))
        forms = ["JSON", "JSON_MIN", "CSV", "TSV"]
        if title in ("boxes", "polygons"):
            forms += ["COCO", "YOLO"]
        if title == "boxes":
            forms += ["VOC", "YOLO_OBB"]
        for form in forms:
            out = root / f"{form} {title}"
            out.mkdir(parents=True)
            write_images(out / "images")
            arguments = {} if form.startswith(("JSON", "CSV", "TSV")) else {"image_dir": str(out / "images")}
            converter.convert(str(tasks), str(out), form, is_dir=False, **arguments)


def pascal_voc_writer(root: Path) -> None:
    from pascal_voc_writer import Writer

    for path in write_images(root / "voc"):
        writer = Writer(str(path), *SIZES[path.stem])
        for thing in OBJECTS[path.stem]:
            writer.addObject(thing.label, *thing.box)
        writer.save(str(path.with_suffix(".xml")))


def labelformat(root: Path) -> None:
    from labelformat import formats

    start = root.parent / "coco.json"
    start.write_text(json.dumps(coco_document(first=0)))
    boxes = formats.COCOObjectDetectionInput(start)
    masks = formats.COCOInstanceSegmentationInput(start)

    def out(name: str, images: str = "images") -> Path:
        write_images(root / name / images)
        return root / name

    formats.COCOObjectDetectionOutput(out("coco") / "coco.json").save(boxes)
    formats.COCOInstanceSegmentationOutput(out("coco masks") / "coco.json").save(masks)
    formats.PascalVOCObjectDetectionOutput(out("voc") / "annotations").save(boxes)
    formats.KittiObjectDetectionOutput(out("kitti") / "labels").save(boxes)
    formats.CVATObjectDetectionOutput(out("cvat") / "annotations.xml").save(boxes)
    formats.LightlyObjectDetectionOutput(out("lightly") / "predictions" / "task").save(boxes)
    formats.RTDETRObjectDetectionOutput(out("rtdetr") / "coco.json").save(boxes)
    formats.RTDETRv2ObjectDetectionOutput(out("rtdetr 2") / "coco.json").save(boxes)
    for number in (5, 6, 7, 8, 9, 10, 11, 12, 26):
        form = getattr(formats, f"YOLOv{number}ObjectDetectionOutput")
        form(out(f"yolo {number}") / "data.yaml", "train").save(boxes)
    formats.YOLOv8InstanceSegmentationOutput(out("yolo 8 masks") / "data.yaml", "train").save(masks)


def pylabel(root: Path) -> None:
    from pylabel import importer

    folder = root.parent / "in"
    write_images(folder)
    (folder / "coco.json").write_text(json.dumps(coco_document()))
    data = importer.ImportCoco(str(folder / "coco.json"), path_to_images="", name="animals")
    write_images(root / "coco")
    data.export.ExportToCoco(str(root / "coco" / "coco.json"))
    data = importer.ImportCoco(str(folder / "coco.json"), path_to_images="", name="animals")
    write_images(root / "voc")
    data.export.ExportToVoc(str(root / "voc"))
    for title, first in (("yolo", None), ("yolo from 0", 0)):
        data = importer.ImportCoco(str(folder / "coco.json"), path_to_images="", name="animals")
        data.export.ExportToYoloV5(
            str(root / title / "labels"),
            yaml_file="dataset.yaml",
            copy_images=True,
            use_splits=False,
            cat_id_index=first,
        )

    data = importer.ImportCoco(str(folder / "coco.json"), path_to_images="", name="animals")
    data.df["split"] = data.df["img_filename"].map(lambda name: SPLITS[name[0]])
    labels = str(root / "yolo splits" / "labels")
    data.export.ExportToYoloV5(labels, yaml_file="dataset.yaml", copy_images=True, use_splits=True, cat_id_index=0)


def datumaro(root: Path) -> None:
    from datumaro.components.annotation import Bbox, Caption, Label, Mask, Polygon, RotatedBbox
    from datumaro.components.dataset import Dataset
    from datumaro.components.dataset_base import DatasetItem
    from datumaro.components.media import Image as Media

    images = {path.stem: str(path) for path in write_images(root.parent / "in")}

    def annotations(name: str, kind: str) -> list[Any]:
        if kind == "classes":
            return [Label(CLASSES.index(WHOLE[name]))] if name in WHOLE else []
        if kind == "captions":
            return [Caption(f"a picture {name}")]
        found = list[Any]()
        for group, thing in enumerate(OBJECTS[name], 1):
            label = CLASSES.index(thing.label)
            x0, y0, x1, y1 = thing.box
            if kind == "polygons":
                found.append(Polygon(list(thing.polygon), label=label, group=group, id=group))
            elif kind == "turned":
                found.append(RotatedBbox((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0, 0, label=label, id=group))
            elif kind == "masks":
                found.append(Mask(mask_of(name, thing.polygon), label=label, group=group, id=group))
            else:
                found.append(Bbox(x0, y0, x1 - x0, y1 - y0, label=label, group=group, id=group))
        return found

    def data_set(kind: str, subsets: dict[str, str], names: str = "abcd") -> Any:
        items = [
            DatasetItem(
                id=name, subset=subsets[name], media=Media.from_file(images[name]), annotations=annotations(name, kind)
            )
            for name in names
        ]
        return Dataset.from_iterable(items, categories=list(CLASSES))

    single = dict.fromkeys("abcd", "train")
    for form in (
        "coco", "coco_instances", "datumaro", "cvat", "kitti", "kitti_detection", "label_me", "mot_seq_gt", "open_images", "voc",
        "voc_detection", "wider_face", "yolo",
    ):  # fmt: skip
        data_set("boxes", single).export(str(root / form), form, save_media=True)
    for form in ("coco", "datumaro", "kitti_detection", "open_images", "voc_detection", "yolo", "yolo_ultralytics"):
        data_set("boxes", SPLITS).export(str(root / f"{form} splits"), form, save_media=True)
    for form in ("coco_instances", "datumaro", "cvat", "label_me"):
        data_set("polygons", single).export(str(root / f"{form} polygons"), form, save_media=True)
    data_set("turned", single).export(str(root / "dota turned"), "dota", save_media=True)
    data_set("captions", SPLITS).export(str(root / "coco_captions captions"), "coco_captions", save_media=True)
    data_set("polygons", SPLITS).export(str(root / "coco splits polygons"), "coco", save_media=True)
    for form in (
        "coco_panoptic",
        "coco_stuff",
        "coco_instances",
        "datumaro",
        "voc_segmentation",
        "camvid",
        "cityscapes",
        "kitti",
    ):
        data_set("masks", single).export(str(root / f"{form} masks"), form, save_media=True)
    for form in (
        "imagenet",
        "imagenet_with_subset_dirs",
        "imagenet_txt",
        "datumaro",
        "cvat",
        "voc_classification",
        "coco_labels",
    ):
        data_set("classes", SPLITS).export(str(root / f"{form} classes"), form, save_media=True)


def ultralytics(root: Path) -> None:
    from ultralytics.data import converter
    from ultralytics.data.split import autosplit

    folder = root.parent / "annotations"
    folder.mkdir()
    (folder / "instances_train.json").write_text(json.dumps(coco_document(names="ab")))
    (folder / "instances_val.json").write_text(json.dumps(coco_document(names="cd")))
    for title, use_segments in (("convert_coco", False), ("convert_coco segments", True)):
        out = root / title
        converter.convert_coco(str(folder), str(out), use_segments=use_segments, cls91to80=False)
        write_images(out / "images" / "train", "ab")
        write_images(out / "images" / "val", "cd")
    out = root / "autosplit"
    write_images(out / "images")
    (out / "labels").mkdir()
    for text in (root / "convert_coco" / "labels").rglob("*.txt"):
        shutil.copy(text, out / "labels")
    autosplit(out / "images", weights=(0.5, 0.5, 0.0))
    entries: list[Any] = [
        {
            "type": "dataset",
            "task": "detect",
            "name": "animals",
            "path": "animals",
            "class_names": dict(enumerate(CLASSES)),
        }
    ]
    for name, (width, height) in SIZES.items():
        rows = []
        for thing in OBJECTS[name]:
            x0, y0, x1, y1 = thing.box
            centre = [(x0 + x1) / 2 / width, (y0 + y1) / 2 / height]
            rows.append([CLASSES.index(thing.label), *centre, (x1 - x0) / width, (y1 - y0) / height])
        head = {"type": "image", "file": f"{name}.jpg", "width": width, "height": height, "split": SPLITS[name]}
        entries.append({**head, "annotations": {"boxes": rows} if rows else {}})
        write_images(root.parent / "animals" / "images" / SPLITS[name], name)
    lines = root.parent / "animals.ndjson"
    lines.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    asyncio.run(converter.convert_ndjson_to_yolo(lines, root.parent / "converted"))
    (converted,) = (path for path in (root.parent / "converted").iterdir() if path.is_dir())
    converted.rename(root / "convert_ndjson_to_yolo")
    shutil.copytree(root.parent / "animals" / "images", root / "ndjson" / "images")
    shutil.copy(lines, root / "ndjson")


def fiftyone(root: Path) -> None:
    import fiftyone as fo
    import fiftyone.types as forms

    def masked(thing: Any, name: str) -> Any:
        """An object with the mask of its box."""
        (width, height), (x0, y0, x1, y1) = SIZES[name], thing.box
        box = [x0 / width, y0 / height, (x1 - x0) / width, (y1 - y0) / height]
        return fo.Detection(label=thing.label, bounding_box=box, mask=mask_of(name, thing.polygon)[y0:y1, x0:x1])

    def data_set(kind: str) -> Any:
        found = fo.Dataset()
        found.default_classes = list(CLASSES)
        for path in write_images(root.parent / "in"):
            width, height = SIZES[path.stem]
            sample = fo.Sample(filepath=str(path), tags=[SPLITS[path.stem]])
            sample.compute_metadata()
            if kind == "classes":
                sample["truth"] = fo.Classification(label=WHOLE[path.stem]) if path.stem in WHOLE else None
            elif kind == "polygons":
                shares = [
                    [(x / width, y / height) for x, y in zip(one.polygon[0::2], one.polygon[1::2], strict=True)]
                    for one in OBJECTS[path.stem]
                ]
                lines = [
                    fo.Polyline(label=one.label, points=[points], closed=True, filled=True)
                    for one, points in zip(OBJECTS[path.stem], shares, strict=True)
                ]
                sample["truth"] = fo.Polylines(polylines=lines)
            elif kind == "several":
                names = sorted({thing.label for thing in OBJECTS[path.stem]})
                labels = [fo.Classification(label=label) for label in names]
                sample["truth"] = fo.Classifications(classifications=labels)
            elif kind == "segments":
                pixels = np.zeros((height, width), np.uint8)
                for thing in OBJECTS[path.stem]:
                    pixels[mask_of(path.stem, thing.polygon)] = CLASSES.index(thing.label) + 1
                sample["truth"] = fo.Segmentation(mask=pixels)
            elif kind == "masks":
                sample["truth"] = fo.Detections(detections=[masked(one, path.stem) for one in OBJECTS[path.stem]])
            else:
                sides = [
                    [one.box[0] / width, one.box[1] / height, (one.box[2] - one.box[0]) / width, (one.box[3] - one.box[1]) / height]
                    for one in OBJECTS[path.stem]
                ]  # fmt: skip
                boxes = [
                    fo.Detection(label=one.label, bounding_box=box)
                    for one, box in zip(OBJECTS[path.stem], sides, strict=True)
                ]
                sample["truth"] = fo.Detections(detections=boxes) if boxes else None
            found.add_sample(sample)
        return found

    boxes = ("COCODetectionDataset", "VOCDetectionDataset", "KITTIDetectionDataset", "YOLOv4Dataset", "YOLOv5Dataset",
             "CVATImageDataset", "FiftyOneImageDetectionDataset", "BDDDataset", "LegacyFiftyOneDataset",
             "FiftyOneDataset", "CSVDataset")  # fmt: skip
    classes = ("ImageClassificationDirectoryTree", "FiftyOneImageClassificationDataset", "FiftyOneDataset")
    for kind, names in (
        ("boxes", boxes),
        ("classes", classes),
        ("polygons", ("COCODetectionDataset", "FiftyOneDataset", "BDDDataset", "YOLOv5Dataset", "CVATImageDataset")),
        ("masks", ("COCODetectionDataset", "FiftyOneDataset")),
        ("several", ("FiftyOneImageClassificationDataset", "FiftyOneDataset")),
        ("segments", ("ImageSegmentationDirectory", "FiftyOneDataset")),
    ):
        for name in names:
            source = data_set(kind)
            out = root / f"{name} {kind}"
            arguments = {"classes": list(CLASSES)} if "COCO" in name or "YOLO" in name else {}
            source.export(str(out), getattr(forms, name), label_field="truth", **arguments)


TOOLS: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (
        supervision, globox, sahi, label_studio, pascal_voc_writer, labelformat, pylabel, datumaro, ultralytics, fiftyone,
    )
}  # fmt: skip


def regenerate(tool: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "out"
        root.mkdir()
        TOOLS[tool](root)
        exports = {folder.name: collect(folder) for folder in sorted(root.iterdir())}
    text = json.dumps({"version": version(PACKAGES.get(tool, tool)), "exports": exports}, indent=1)
    place = SimpleNamespace(file=EXPORTS / f"{tool}.json")
    place.file.write_text(f"{text.replace(scratch, '/home/user')}\n")


if __name__ == "__main__":
    regenerate(sys.argv[1])
