#include "jpeg.h"
#include "jpeg_points.h"

// Whether a file ends as it should. Of one that does not, all rows are read, to find the fault.
static bool has_end_marker(Span file) {
    return file.bytes[file.size - 2] == 0xFF && file.bytes[file.size - 1] == EOI;
}

// The pixels of a part, row by row: as soon as the planes hold a row of MCUs, its pixels are made.
typedef struct {
    uint8_t *pixels;
    int64_t rows_done;
} PartPixels;

static void make_pixels(const Frame *frame, const Part *part, int64_t row, PartPixels *made) {
    if (row < part->first_row || row >= part->end_row)
        return;
    repeat_edges(frame, part, row);
    int64_t ready = ready_rows(frame, part, row);
    convert_rows(frame, part, made->rows_done, ready, made->pixels);
    made->rows_done = ready;
}

// Decodes a part from the beginning of the file. False if the file has a fault.
static bool decode_from_begin(Span file, const Frame *frame, JpegScratch *scratch, const Part *part, uint8_t *pixels) {
    PartPixels made = {pixels, 0};
    bool reads_all = part->end_row == frame->rows || !has_end_marker(file);
    int64_t end_row = reads_all ? frame->rows : part->end_row;
    Columns all_columns = {0, frame->columns};
    begin_scan(file, frame, scratch);
    for (int64_t row = 0; row < end_row; row++) {
        if (!read_row(file, frame, scratch, part, row, all_columns))
            return false;
        make_pixels(frame, part, row, &made);
    }
    return ends_well(file, scratch, reads_all);
}

// Decodes a part by its seek points. False if the file has a fault, or its points have.
static bool decode_by_points(
    Span file, const Frame *frame, JpegScratch *scratch, const Part *part, const Points *points, uint8_t *pixels
) {
    PartPixels made = {pixels, 0};
    int64_t row_at = row_begin(points, frame, part->first_row);
    for (int64_t row = part->first_row; row < part->end_row; row++) {
        Columns columns;
        if (!seek_row(file, frame, scratch, part, points, row, row_at, &columns))
            return false;
        if (!read_row(file, frame, scratch, part, row, columns))
            return false;
        if (!agrees_with_points(file, frame, scratch, points, row, row_at, columns.end))
            return false;
        row_at += row_bits(points, row);
        make_pixels(frame, part, row, &made);
    }
    return true;
}

EXPORT int64_t jpeg_scratch_bytes(void) { return sizeof(JpegScratch); }

bool decode_jpeg(
    Span file, Span stored_points, const Window *window, int64_t factor, bool takes_turned, JpegScratch *scratch,
    uint8_t *planes, uint8_t *pixels, Picture *picture
) {
    Frame frame = read_frame(file, scratch);
    if (frame.begin == 0 || frame.height != picture->height || frame.width != picture->width)
        return false;
    if (frame.orientation != UPRIGHT && !takes_turned)
        return false;
    Part part = make_part(&frame, window, factor, planes);
    Points points = read_points(stored_points, file, &frame);
    bool is_decoded = false;
    if (points.apart != 0 && has_end_marker(file))
        is_decoded = decode_by_points(file, &frame, scratch, &part, &points, pixels);
    if (!is_decoded)  // the points may not be those of this file
        is_decoded = decode_from_begin(file, &frame, scratch, &part, pixels);
    if (is_decoded)
        *picture = (Picture){pixels, part.height, part.width, 3 * part.width, part.top * factor, part.left * factor, factor};
    return is_decoded;
}
