// Writes blocks of deflate (RFC 1951) with codes of their own, of given tokens.

#pragma once

#include "inflate.h"

typedef struct {
    uint8_t *next, *end;
    uint64_t bits;
    int64_t count;   // of bits, below 8 between two calls
    bool has_room;   // whether everything came before `end`
} BitWriter;

// At most 48 bits at a time, the first in the lowest place.
void write_bits(BitWriter *writer, uint64_t value, int64_t number);

// Writes tokens as blocks. bytes: of which they are.
void write_blocks(BitWriter *writer, const Token *tokens, int64_t number, const uint8_t *bytes, bool is_last);

// Ends a byte by an empty stored block, behind which a reader may begin.
void write_flush(BitWriter *writer);
