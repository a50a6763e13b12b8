// CRC-32 by tables, eight bytes at a time, and by multiplications without carry where the processor has them (processor.c).

#include "checksum.h"
#include "processor.h"

enum { SLICES = 8 };
static const uint32_t POLYNOMIAL = 0xEDB88320;  // reflected

static uint32_t tables[SLICES][256];  // tables[n][byte]: what a byte becomes after n more bytes of zeros

__attribute__((constructor)) static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t rest = byte;
        for (int bit = 0; bit < 8; bit++)
            rest = rest >> 1 ^ (rest & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = rest;
    }
    for (int slice = 1; slice < SLICES; slice++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tables[slice - 1][byte];
            tables[slice][byte] = before >> 8 ^ tables[0][before & 255];
        }
}

static uint32_t add_bytes(uint32_t rest, const uint8_t *bytes, int64_t size) {
    for (; size >= SLICES; size -= SLICES, bytes += SLICES) {
        uint64_t word = load_little_endian(bytes) ^ rest;
        rest = 0;
        for (int slice = 0; slice < SLICES; slice++)
            rest ^= tables[SLICES - 1 - slice][word >> 8 * slice & 255];
    }
    for (; size > 0; size--, bytes++)
        rest = rest >> 8 ^ tables[0][(rest ^ *bytes) & 255];
    return rest;
}

uint32_t crc_of(const uint8_t *bytes, int64_t size) {
    uint8_t folded[FOLDED_BYTES];
    int64_t done = fold_bytes(bytes, size, folded);
    uint32_t rest = ~(uint32_t)0;
    if (done > 0)
        rest = add_bytes(0, folded, FOLDED_BYTES);
    return ~add_bytes(rest, bytes + done, size - done);
}

typedef uint8_t U8x32 __attribute__((vector_size(32)));
typedef uint16_t U16x32 __attribute__((vector_size(64)));

enum {
    ADLER_MODULUS = 65521,
    COLUMNS = 32,
    ROWS = 22,  // so that sums of sums of bytes fit into 16 bits
    ADLER_BLOCK = ROWS * COLUMNS,
};

// The sum of the bytes of a block, and the sum of its sums up to each byte.
typedef struct {
    uint64_t bytes, sums;
} BlockSums;

static BlockSums sums_of_block(const uint8_t *bytes) {
    U16x32 of_columns = {0};
    U16x32 of_sums = {0};
    for (int row = 0; row < ROWS; row++) {
        U8x32 next;
        memcpy(&next, bytes + row * COLUMNS, sizeof next);
        of_columns += __builtin_convertvector(next, U16x32);
        of_sums += of_columns;
    }
    BlockSums sums = {0, 0};
    for (int column = 0; column < COLUMNS; column++) {
        sums.bytes += of_columns[column];
        sums.sums += (uint64_t)COLUMNS * of_sums[column] - (uint64_t)column * of_columns[column];
    }
    return sums;
}

uint32_t continue_adler(uint32_t adler, const uint8_t *bytes, int64_t size) {
    uint64_t low = adler & 0xFFFF;
    uint64_t high = adler >> 16;
    for (; size >= ADLER_BLOCK; size -= ADLER_BLOCK, bytes += ADLER_BLOCK) {
        BlockSums sums = sums_of_block(bytes);
        high = (high + ADLER_BLOCK * low + sums.sums) % ADLER_MODULUS;
        low = (low + sums.bytes) % ADLER_MODULUS;
    }
    for (; size > 0; size--, bytes++) {
        low += *bytes;
        high += low;
    }
    return (uint32_t)(high % ADLER_MODULUS << 16 | low % ADLER_MODULUS);
}
