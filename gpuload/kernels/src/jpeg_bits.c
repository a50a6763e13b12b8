// The coefficients of a block, decoded from its bits (ITU-T T.81, F.2.2).

#include "jpeg.h"

// An entry of a lookup table, from its lowest bits: the number of bits of a code and the value after it (6 bits), of the code
// alone (5), of the value (5); then the number of coefficients that are 0 before the value, or one of these. They are large
// enough to end the loop over a block, wherever it is.
enum { END_OF_BLOCK = 128, LONG_CODE = 256 };  // the latter: a code longer than LOOKUP_BITS, or none

static inline uint64_t entry_code_bits(uint64_t entry) { return entry >> 6 & 31; }
static inline uint64_t entry_value_bits(uint64_t entry) { return entry >> 11 & 31; }
static inline uint64_t entry_zeros(uint64_t entry) { return entry >> 16; }

// The entry of a symbol whose code has `length` bits.
static uint32_t entry_of(uint32_t length, uint32_t symbol, bool is_dc) {
    if (is_dc)
        return (length + symbol) | length << 6 | symbol << 11;
    uint32_t zeros = symbol >> 4;
    uint32_t bits = symbol & 15;
    if (bits == 0 && zeros != 15)
        return length | length << 6 | END_OF_BLOCK << 16;
    return (length + bits) | length << 6 | bits << 11 | zeros << 16;
}

// definition: counts of codes and symbols, which are valid. Nearly always the table was made of the same one before, and
// nothing is to be done. One without symbols is made anew: it is what memory that holds no table looks like.
void define_huffman_table(const uint8_t *definition, int64_t symbols, bool is_dc, HuffmanTable *table) {
    if (symbols != 0 && memcmp(table->definition, definition, (size_t)(CODE_LENGTHS + symbols)) == 0)
        return;
    memcpy(table->definition, definition, (size_t)(CODE_LENGTHS + symbols));
    const uint8_t *symbol = table->definition + CODE_LENGTHS;
    int64_t place = 0;
    for (uint32_t length = 1; length <= LOOKUP_BITS; length++)
        for (int code = 0; code < table->definition[length - 1]; code++) {
            uint32_t entry = entry_of(length, *symbol++, is_dc);
            for (int64_t end = place + (1 << (LOOKUP_BITS - length)); place < end; place++)
                table->lookup[place] = entry;
        }
    for (; place < 1 << LOOKUP_BITS; place++)
        table->lookup[place] = (uint32_t)LONG_CODE << 16;
}

// The entry of the code that `bits` begin with, of any length; LONG_CODE zeros if there is none. Inlined, since around a call
// registers are saved in every block: 3 % of decoding. Its loop is rolled, since the one over a block becomes slower with
// longer code in it: 4 % of decoding (2026-11).
static inline __attribute__((always_inline)) uint64_t find_long_code(uint64_t bits, const HuffmanTable *table, bool is_dc) {
    int64_t code = 0;
    int64_t first_code = 0;
    int64_t first_symbol = 0;
#pragma clang loop unroll(disable)
    for (int length = 1; length <= CODE_LENGTHS; length++) {
        int64_t number = table->definition[length - 1];
        code |= (int64_t)(bits >> (64 - length) & 1);
        if (code - first_code < number) {
            uint8_t symbol = table->definition[CODE_LENGTHS + first_symbol + code - first_code];
            return entry_of((uint32_t)length, symbol, is_dc);
        }
        first_symbol += number;
        first_code = (first_code + number) << 1;
        code <<= 1;
    }
    return (uint64_t)LONG_CODE << 16;
}

static inline uint64_t look_up_code(const BitReader *reader, const HuffmanTable *table) {
    return table->lookup[reader->bits >> (64 - LOOKUP_BITS)];
}

// Gets 56 to 63 unused bits, without a branch.
static inline void refill(BitReader *reader) {
    reader->bits |= load_big_endian(reader->next) >> (reader->unused & 63);
    reader->next += ~reader->unused >> 3 & 7;
    reader->unused |= 56;
}

// The whole entry is subtracted: of the difference only the lowest 6 bits count, and shifts by them need no other
// instruction. To single them out first is a step more between a symbol and the next.
static inline void consume(BitReader *reader, uint64_t entry) {
    reader->unused -= entry;
    reader->bits <<= entry & 63;
}

// The value after a code: negative where its bits begin with 0 (T.81, table F.1).
static inline int32_t value_of(const BitReader *reader, uint64_t entry) {
    uint64_t bits = reader->bits << entry_code_bits(entry);
    uint64_t size = entry_value_bits(entry);
    int64_t value = (int64_t)(bits >> 1 >> (63 - size));
    int64_t is_negative = ~((int64_t)bits >> 63);
    return (int32_t)(value - (((1LL << size) - 1) & is_negative));
}

// Reads the DC coefficient of a block. False if it cannot be read.
static inline bool read_dc(BitReader *reader, int64_t *dc_before, const HuffmanTable *table) {
    uint64_t entry = look_up_code(reader, table);
    refill(reader);
    if (entry_zeros(entry) != 0)
        entry = find_long_code(reader->bits, table, true);
    *dc_before = (int32_t)*dc_before + value_of(reader, entry);
    consume(reader, entry);
    return entry_zeros(entry) == 0;
}

// The index of each coefficient, row * 8 + column, in the order of the file (T.81, figure A.6).
static const uint8_t ZIGZAG[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

enum BlockResult read_block(
    BitReader *shared, int64_t *dc_before, const HuffmanTable *dc, const HuffmanTable *ac, const int32_t *quantization,
    int32_t *coefficients
) {
    BitReader reader = *shared;  // in registers
    if (!read_dc(&reader, dc_before, dc))
        return FAULT;
    memset(coefficients, 0, 64 * sizeof *coefficients);
    coefficients[0] = (int32_t)*dc_before * quantization[0];
    enum BlockResult result = ONLY_DC;
    for (uint64_t index = 1; index < 64; index++) {
        uint64_t entry = look_up_code(&reader, ac);
        refill(&reader);
        index += entry_zeros(entry);
        if (index > 63) {
            if (index >= LONG_CODE) {
                entry = find_long_code(reader.bits, ac, false);
                index += entry_zeros(entry) - LONG_CODE;
            }
            if (index > 63) {
                if (index < END_OF_BLOCK || index >= LONG_CODE)
                    return FAULT;
                consume(&reader, entry);
                break;
            }
        }
        coefficients[ZIGZAG[index]] = value_of(&reader, entry) * quantization[index];
        consume(&reader, entry);
        result = MORE;
    }
    *shared = reader;
    return result;
}

enum BlockResult skip_block(BitReader *shared, int64_t *dc_before, const HuffmanTable *dc, const HuffmanTable *ac) {
    BitReader reader = *shared;
    if (!read_dc(&reader, dc_before, dc))
        return FAULT;
    uint64_t index = 1;
    while (index <= 63) {
        uint64_t entry = look_up_code(&reader, ac);
        refill(&reader);
        index += entry_zeros(entry) + 1;
        if (index > LONG_CODE) {
            entry = find_long_code(reader.bits, ac, false);
            index += entry_zeros(entry) - LONG_CODE;
        }
        consume(&reader, entry);
    }
    if (index > 64 && (index <= END_OF_BLOCK || index > LONG_CODE))
        return FAULT;
    *shared = reader;
    return ONLY_DC;
}
