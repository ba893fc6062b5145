// A driver of CUDA that does nothing, on two devices that are not there: it writes down what it is told.
#include <stdio.h>
#include <string.h>

static char words[1 << 16];
static int capturing;
static __thread void* current;

#define TOLD(...) snprintf(words + strlen(words), sizeof words - strlen(words), __VA_ARGS__)
#define UNWANTED(name) \
    int name(void) { return TOLD(#name "\n"), 0; }

const char* told(void) { return words; }
void forget(void) { words[0] = 0; }
void capture(int on) { capturing = on; }
void set_current(void* context) { current = context; }
void* get_current(void) { return current; }

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = 2, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int length, int device) { return strcpy(name, "none"), 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = (size_t)1 << 36, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    // Those of an H100: threads of a block, multiprocessors, level-2 cache, compute capability, shared memory.
    switch (attribute) {
        case 1: return *value = 1024, 0;
        case 16: return *value = 132, 0;
        case 38: return *value = 50 << 20, 0;
        case 75: return *value = 9, 0;
        case 97: return *value = 232448, 0;
        default: return *value = 0, 0;
    }
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = (void*)(0x1000L + device), 0; }
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int cuCtxSetCurrent(void* context) { return current = context, 0; }
int cuStreamCreate(void** stream, unsigned flags) { return *stream = (void*)0x99, 0; }
int cuStreamIsCapturing(void* stream, int* status) { return *status = capturing, 0; }
int cuModuleLoadDataEx(void** module, const void* image, unsigned count, void* options, void* values) {
    return TOLD("load in %p\n", current), *module = (void*)0x77, 0;
}
// Kernels that take other arguments than most: the one that writes the table of sequences, and Triton's.
static int puts_table, of_triton;
int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = !strcmp(name, "put_table") ? &puts_table : !strcmp(name, "fa2") ? &of_triton : (void*)0x88;
    return 0;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) { return *value = attribute ? 0 : 1024, 0; }
int cuFuncSetAttribute(void* function, int attribute, int value) { return 0; }

struct Config {
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
};

/// Context and stream; of the first argument the first five tensors, q, k, v, o and lse, and the address of the table
/// of sequences, as kernels/tile/problem.cuh has them. Triton's has that address behind five tensors of an address and
/// three strides each. What writes the table has its place, the number of words, and the words.
int cuLaunchKernelEx(const struct Config* config, void* function, void** arguments, void** extra) {
    const long long* word = arguments[0];
    if (function == &puts_table) {
        const int *count = arguments[1], *table = arguments[2];
        TOLD("table in %p on %p at %llx", current, config->stream, word[0]);
        for (int i = 0; i < *count; ++i) TOLD(" %d", table[i]);
    } else if (function == &of_triton) {
        TOLD("triton in %p on %p, table at %llx", current, config->stream, *(const long long*)arguments[20]);
    } else {
        TOLD("launch in %p on %p", current, config->stream);
        for (int i = 0; i < 25; ++i) TOLD(" %llx", word[i]);
        TOLD(" %llx", word[38]);
    }
    return TOLD("\n"), 0;
}

UNWANTED(cuDevicePrimaryCtxRelease_v2)
UNWANTED(cuCtxSynchronize)
UNWANTED(cuMemGetInfo_v2)
UNWANTED(cuMemAlloc_v2)
UNWANTED(cuMemFree_v2)
UNWANTED(cuMemcpyHtoD_v2)
UNWANTED(cuMemcpyDtoH_v2)
UNWANTED(cuMemsetD8_v2)
UNWANTED(cuModuleUnload)
UNWANTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
UNWANTED(cuStreamSynchronize)
UNWANTED(cuStreamDestroy_v2)
UNWANTED(cuStreamWaitEvent)
UNWANTED(cuStreamBeginCapture_v2)
UNWANTED(cuStreamEndCapture)
UNWANTED(cuGraphInstantiateWithFlags)
UNWANTED(cuGraphDestroy)
UNWANTED(cuGraphExecDestroy)
UNWANTED(cuGraphLaunch)
UNWANTED(cuEventCreate)
UNWANTED(cuEventRecord)
UNWANTED(cuEventSynchronize)
UNWANTED(cuEventElapsedTime)
UNWANTED(cuEventDestroy_v2)
UNWANTED(cuTensorMapEncodeTiled)
