// The tables by which the codes of deflate (RFC 1951) are read.

#pragma once

#include "common.h"

enum {
    LITERAL_BITS = 11,   // of the index of a table of literals and lengths; longer codes have a second table
    DISTANCE_BITS = 8,
    PRECODE_BITS = 7,
    MOST_CODE_BITS = 15,
    LITERAL_SYMBOLS = 288,
    DISTANCE_SYMBOLS = 32,
    PRECODE_SYMBOLS = 19,
    END_OF_BLOCK = 256,
    FIRST_LENGTH = 257,
    LENGTHS = 29,
    DISTANCES = 30,
};

// Second tables of an alphabet: each is of two codes at least, and reaches from the bits of the first to the longest code.
#define SECOND_ENTRIES(symbols, bits) ((symbols) / 2 * (1 << (MOST_CODE_BITS - (bits))))

// An entry of a table, from its lowest bits:
//     8 bits: of the code, and of the number that follows it, to read past
//     of one or two literals: 2 bits: how many; then at bit 16 the literals
//     of others: 4 bits: of the code alone; the flag SPECIAL, and the flags of what else is meant; at bit 16 the least value
enum {
    COUNT_SHIFT = 8,
    SECOND = 1 << 12,    // the value is where a second table begins, the 4 bits are those of its index
    STOP = 1 << 13,      // the end of a block (value 0), or no code (value 1)
    SPECIAL = 1 << 15,
    VALUE_SHIFT = 16,
    NO_CODE = SPECIAL | STOP | 1 << VALUE_SHIFT,
};

typedef struct {
    uint32_t single[1 << LITERAL_BITS];  // the first table of literals, before they are joined in pairs
    uint32_t literals[(1 << LITERAL_BITS) + SECOND_ENTRIES(LITERAL_SYMBOLS, LITERAL_BITS)];
    uint32_t distances[(1 << DISTANCE_BITS) + SECOND_ENTRIES(DISTANCE_SYMBOLS, DISTANCE_BITS)];
    uint32_t precode[1 << PRECODE_BITS];
} DeflateTables;

// Each fills a table for codes of these lengths, in bits, by symbol; 0: no code. False if there are more codes than can be
// told apart, or fewer than are possible, but for a single one of one bit.
bool make_literal_table(DeflateTables *tables, const uint8_t *lengths, int64_t symbols);
bool make_distance_table(DeflateTables *tables, const uint8_t *lengths, int64_t symbols);
bool make_precode_table(DeflateTables *tables, const uint8_t lengths[PRECODE_SYMBOLS]);
