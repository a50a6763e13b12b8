// Seek points: places in the coded pixels of a JPEG at which decoding may begin, so that a crop costs little more than its
// pixels. Of every row of MCUs, and of every so many columns in it, the bit at which the MCU begins and the DC coefficients
// before it. The index holds them for each image as bytes:
//
//     uint8: columns of MCUs from point to point; then how many bits a number takes of (1) the distance between the first
//     points of two rows, (2) that between two points of a row, (3) a DC coefficient of each of three components
//     the numbers, from the highest bit of a byte on: (1) of all rows but the last; (2) row by row; (3) point by point,
//     zigzag (0, -1, 1, -2, …)
//     a checksum of all bytes before it and of the size of the JPEG, 8 bytes; or 8 zeros, as written until 2026-11-28
//
// Distances are in bits of the file, with stuffed bytes. The first point is where the scan begins.
//
// Points whose checksum does not match are not used. What is decoded must end at the next point, with its coefficients: so
// points of another file and a fault of the file are noticed. Where a restart marker is, the point lies at the marker, with
// the coefficients before it. There may be none between two points, since behind it these coefficients could no longer be
// compared: files with such markers have no points.
//
// Points that were forged to agree with each other, with a checksum, are not noticed here, as no proof costs less than
// reading all coded pixels: `points_hold` does that, for `verify`.

#pragma once

#include "jpeg.h"

enum PointNumber { ROW_DISTANCE, STEP_DISTANCE, COEFFICIENT, POINT_NUMBERS = COEFFICIENT + 3 };

// The points of a file; `apart` is 0 where it has none.
typedef struct {
    int64_t apart;                 // columns of MCUs from one to the next
    int64_t number;                // in a row
    const uint8_t *numbers;
    int64_t bits[POINT_NUMBERS];   // that a number takes, by its kind; a coefficient of each component
} Points;

// The points in these bytes; none where they are not of this frame, or not those that were written.
Points read_points(Span stored, Span file, const Frame *frame);

// The bit of the file at which a row of MCUs begins, and how many bits there are to the next row.
int64_t row_begin(const Points *points, const Frame *frame, int64_t row);
int64_t row_bits(const Points *points, int64_t row);

// Prepares for what a part needs of a row, from the point before it to the one after it. row_at: bit of the row. Sets the
// columns to read; false where the point lies outside of the file.
bool seek_row(
    Span file, const Frame *frame, JpegScratch *scratch, const Part *part, const Points *points, int64_t row,
    int64_t row_at, Columns *columns
);

// Whether reading has come to the point at this column, or in the next row, as it has if both points are right.
bool agrees_with_points(
    Span file, const Frame *frame, const JpegScratch *scratch, const Points *points, int64_t row, int64_t row_at,
    int64_t column
);
