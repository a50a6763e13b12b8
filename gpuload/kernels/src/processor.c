#include "processor.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

typedef struct {
    uint32_t eax, ebx, ecx, edx;
} Registers;

static Registers cpuid(uint32_t leaf) {
    Registers of_leaf = {0};
    __get_cpuid_count(leaf, 0, &of_leaf.eax, &of_leaf.ebx, &of_leaf.ecx, &of_leaf.edx);
    return of_leaf;
}

// Which registers the operating system saves: Intel's manual, volume 1, 13.3.
enum { SAVES_AVX = 0x06, SAVES_AVX512 = 0xE6 };

static uint32_t saved_registers(void) {
    uint32_t low;
    uint32_t high;
    if (!(cpuid(1).ecx & bit_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has_all(uint32_t flags, uint32_t needed) { return (flags & needed) == needed; }

static bool has_avx512(void) {
    uint32_t needed = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
    return has_all(saved_registers(), SAVES_AVX512) && has_all(cpuid(7).ebx, needed);
}

// The levels of the x86-64 psABI, 3.1.1.
int64_t processor_level(void) {
    Registers basic = cpuid(1);
    Registers extended = cpuid(0x80000001);
    uint32_t second = bit_SSE3 | bit_SSSE3 | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT | bit_CMPXCHG16B;
    if (!has_all(basic.ecx, second))
        return 1;
    uint32_t third = bit_AVX | bit_F16C | bit_FMA | bit_MOVBE;
    uint32_t third_extended = bit_AVX2 | bit_BMI | bit_BMI2;
    bool has_third = has_all(basic.ecx, third) && has_all(cpuid(7).ebx, third_extended) && (extended.ecx & bit_LZCNT);
    if (!has_third || !has_all(saved_registers(), SAVES_AVX))
        return 2;
    return has_avx512() ? 4 : 3;
}

static bool has_vbmi;

__attribute__((constructor)) static void find_vbmi(void) {
    has_vbmi = has_avx512() && has_all(cpuid(7).ecx, bit_AVX512VBMI);
}

__attribute__((target("avx512f,avx512bw,avx512vbmi"))) int64_t look_up_vectors(
    const uint8_t table[256], const uint8_t *source, int64_t bytes, uint8_t *result
) {
    if (!has_vbmi)
        return 0;
    __m512i parts[4];
    for (int part = 0; part < 4; part++)
        parts[part] = _mm512_loadu_si512(table + 64 * part);
    int64_t done = 0;
    for (; done + 64 <= bytes; done += 64) {
        __m512i levels = _mm512_loadu_si512(source + done);
        __m512i lower = _mm512_permutex2var_epi8(parts[0], levels, parts[1]);
        __m512i upper = _mm512_permutex2var_epi8(parts[2], levels, parts[3]);
        __m512i values = _mm512_mask_blend_epi8(_mm512_movepi8_mask(levels), lower, upper);
        _mm512_storeu_si512(result + done, values);
    }
    return done;
}

static bool has_clmul;

__attribute__((constructor)) static void find_clmul(void) {
    uint32_t needed = bit_PCLMUL | bit_SSE4_1;
    has_clmul = has_all(cpuid(1).ecx, needed);
}

// The remainders of x^(bits + 32) and x^(bits - 32) by the polynomial, reflected, which move a word over so many bits:
// Gopal et al., Fast CRC computation for generic polynomials using PCLMULQDQ instruction, Intel 2009.
#define OVER_512_BITS 0x1C6E41596, 0x154442BD4
#define OVER_128_BITS 0x0CCAA009E, 0x1751997D0

__attribute__((target("pclmul,sse4.1"))) static inline __m128i fold(__m128i words, __m128i factors, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(words, factors, 0x00);
    __m128i high = _mm_clmulepi64_si128(words, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("pclmul,sse4.1"))) int64_t fold_bytes(
    const uint8_t *bytes, int64_t size, uint8_t folded[FOLDED_BYTES]
) {
    enum { LANES = 4, BLOCK = LANES * FOLDED_BYTES };
    if (!has_clmul || size < 2 * BLOCK)
        return 0;
    __m128i lanes[LANES];
    for (int lane = 0; lane < LANES; lane++)
        lanes[lane] = _mm_loadu_si128((const __m128i *)(const void *)(bytes + FOLDED_BYTES * lane));
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(-1));
    __m128i over_512_bits = _mm_set_epi64x(OVER_512_BITS);
    int64_t done = BLOCK;
    for (; done + BLOCK <= size; done += BLOCK)
        for (int lane = 0; lane < LANES; lane++) {
            const void *next = bytes + done + FOLDED_BYTES * lane;
            lanes[lane] = fold(lanes[lane], over_512_bits, _mm_loadu_si128((const __m128i *)next));
        }
    __m128i over_128_bits = _mm_set_epi64x(OVER_128_BITS);
    for (int lane = 1; lane < LANES; lane++)
        lanes[lane] = fold(lanes[lane - 1], over_128_bits, lanes[lane]);
    memcpy(folded, &lanes[LANES - 1], FOLDED_BYTES);
    return done;
}

#else

int64_t fold_bytes(const uint8_t *bytes, int64_t size, uint8_t folded[FOLDED_BYTES]) {
    (void)bytes;
    (void)size;
    (void)folded;
    return 0;
}

int64_t processor_level(void) { return 0; }

int64_t look_up_vectors(const uint8_t table[256], const uint8_t *source, int64_t bytes, uint8_t *result) {
    (void)table;
    (void)source;
    (void)bytes;
    (void)result;
    return 0;
}

#endif

// What the library was compiled from: gpuload/kernels/sources.py.
EXPORT const char *kernel_stamp(void);
const char *kernel_stamp(void) { return STAMP; }
