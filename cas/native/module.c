/* Python's face of the kernel: buffers in, buffers out, without the GIL. gpu_train_cas/codecs/kernel.py is its only user. */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernel.h"

/* A buffer argument that may be None. */
static bool optional_buffer(PyObject *object, Py_buffer *view)
{
    view->obj = NULL;
    view->buf = NULL;
    return object == Py_None || PyObject_GetBuffer(object, view, PyBUF_SIMPLE) == 0;
}

static void release(Py_buffer *view)
{
    if (view->obj)
        PyBuffer_Release(view);
}

static const variant_t *variant_named(const char *name)
{
    const variant_t *variant = kernel_select(name);
    if (!variant)
        PyErr_Format(PyExc_ValueError, "kernel variant %s does not run on this machine", name);
    return variant;
}

static bool lengths_match(const Py_buffer *block, const Py_buffer *other, Py_ssize_t due)
{
    if (other->buf == NULL || other->len == due)
        return true;
    PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes where %zd are due for a block of %zd", other->len, due,
                 block->len);
    return false;
}

static PyObject *encode(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *base_object, *sibling_object, *digest_object, *predicted_object, *result = NULL;
    Py_buffer data, base, sibling, digest, predicted;
    Py_ssize_t limit;
    unsigned row, first;
    int element, tokens, source;
    const char *name;
    if (!PyArg_ParseTuple(args, "y*iiiOOOOIInz", &data, &element, &tokens, &source, &base_object, &sibling_object,
                          &digest_object, &predicted_object, &row, &first, &limit, &name))
        return NULL;
    base.obj = sibling.obj = digest.obj = predicted.obj = NULL;
    const variant_t *variant = variant_named(name);
    if (!variant || !optional_buffer(base_object, &base) || !optional_buffer(sibling_object, &sibling) ||
        !optional_buffer(digest_object, &digest) || !optional_buffer(predicted_object, &predicted))
        goto done;
    if (!lengths_match(&data, &base, data.len) || !lengths_match(&data, &sibling, data.len) ||
        !lengths_match(&data, &digest, DIGEST_BYTES))
        goto done;
    bool valid = element >= 0 && element <= (ELEMENT_WIDTH | ELEMENT_FLOAT) && source >= 0 && source <= SOURCE_GRID &&
                 (!(source & SOURCE_BASE) || base.buf) &&
                 (predicted.buf ? tokens && element == PREDICTED_ELEMENT && source <= SOURCE_BASE && base.buf && sibling.buf
                                : !(source & SOURCE_SIBLING) == !sibling.buf) &&
                 !digest.buf == !sibling.buf && (tokens || element & ELEMENT_FLOAT || element == 0) &&
                 (source == SOURCE_GRID ? row > 0 && first < row && row <= (size_t)data.len / 16 : !row && !first);
    if (!valid) {
        PyErr_SetString(PyExc_ValueError, "element, source and buffers do not go together");
        goto done;
    }
    block_t block = {.data = data.buf, .base = base.buf, .sibling = sibling.buf, .digest = digest.buf,
                     .length = (size_t)data.len, .element = (uint8_t)element, .top = tokens != 0,
                     .source = (uint8_t)source, .predicted = predicted.buf, .row = row, .first = first};
    if (predicted.buf) {
        block.predicted_bytes = (size_t)predicted.len;
        if (predicted.len == 0 ||
            prediction_read(predicted.buf, block.predicted_bytes, block.length / 4, &block.prediction) != block.predicted_bytes) {
            PyErr_SetString(PyExc_ValueError, "this is no prediction for such a block");
            goto done;
        }
    }
    /* a bytearray: the limited API can shorten one without a copy, and cannot shorten bytes */
    PyObject *payload = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)kernel_bound((size_t)data.len));
    if (!payload)
        goto done;
    uint8_t *out = (uint8_t *)PyByteArray_AsString(payload);
    size_t size, most = kernel_limit((size_t)data.len);
    most = limit < 0 ? 0 : (size_t)limit < most ? (size_t)limit : most;
    Py_BEGIN_ALLOW_THREADS
    size = variant->encode(&block, out, most);
    Py_END_ALLOW_THREADS
    if (size == (size_t)-1)
        PyErr_NoMemory();
    else if (size == 0)
        result = Py_NewRef(Py_None);
    else if (PyByteArray_Resize(payload, (Py_ssize_t)size) == 0)
        result = Py_NewRef(payload);
    Py_DECREF(payload);
done:
    release(&predicted);
    release(&digest);
    release(&sibling);
    release(&base);
    PyBuffer_Release(&data);
    return result;
}

static PyObject *fit(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer data, base, sibling;
    unsigned row, first;
    int kind;
    if (!PyArg_ParseTuple(args, "iy*y*y*II", &kind, &data, &base, &sibling, &row, &first))
        return NULL;
    PyObject *result = NULL;
    uint8_t *out = NULL;
    if (!lengths_match(&data, &base, data.len) || !lengths_match(&data, &sibling, data.len))
        goto done;
    if ((kind != PREDICT_LINE && kind != PREDICT_SQUARE) || (row ? first >= row || row > ROW_MOST : first != 0)) {
        PyErr_SetString(PyExc_ValueError, "no such prediction");
        goto done;
    }
    block_t block = {.data = data.buf, .base = base.buf, .sibling = sibling.buf, .length = (size_t)data.len};
    out = PyMem_Malloc(prediction_bound(block.length / 4, row));
    size_t size = (size_t)-1;
    if (out) {
        Py_BEGIN_ALLOW_THREADS
        size = prediction_fit(&block, (uint8_t)kind, row, first, out);
        Py_END_ALLOW_THREADS
    }
    if (size == (size_t)-1)
        PyErr_NoMemory();
    else
        result = size ? PyBytes_FromStringAndSize((const char *)out, (Py_ssize_t)size) : Py_NewRef(Py_None);
done:
    PyMem_Free(out);
    PyBuffer_Release(&sibling);
    PyBuffer_Release(&base);
    PyBuffer_Release(&data);
    return result;
}

static PyObject *decode(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *base_object, *sibling_object, *result = NULL;
    Py_buffer data, out, base, sibling;
    const char *name;
    if (!PyArg_ParseTuple(args, "y*w*OOz", &data, &out, &base_object, &sibling_object, &name))
        return NULL;
    base.obj = sibling.obj = NULL;
    const variant_t *variant = variant_named(name);
    if (!variant || !optional_buffer(base_object, &base) || !optional_buffer(sibling_object, &sibling) ||
        !lengths_match(&out, &base, out.len) || !lengths_match(&out, &sibling, out.len))
        goto done;
    block_t block = {.base = base.buf, .sibling = sibling.buf, .length = (size_t)out.len};
    payload_t payload;
    status_t status;
    Py_BEGIN_ALLOW_THREADS
    status = payload_parse(data.buf, (size_t)data.len, block.length, &payload);
    if (status == KERNEL_OK)
        status = variant->decode(&payload, &block, out.buf);
    Py_END_ALLOW_THREADS
    result = status == BAD_MEMORY ? PyErr_NoMemory() : PyLong_FromLong(status);
done:
    release(&sibling);
    release(&base);
    PyBuffer_Release(&out);
    PyBuffer_Release(&data);
    return result;
}

static PyObject *variants(PyObject *self, PyObject *args)
{
    static const char *const names[] = {"avx512", "avx2", "scalar"};
    (void)self;
    (void)args;
    PyObject *found = PyList_New(0);
    for (size_t i = 0; found && i < sizeof names / sizeof *names; i++) {
        if (!kernel_select(names[i]))
            continue;
        PyObject *name = PyUnicode_FromString(names[i]);
        if (!name || PyList_Append(found, name) < 0)
            Py_CLEAR(found);
        Py_XDECREF(name);
    }
    return found;
}

static PyMethodDef methods[] = {
    {"encode", encode, METH_VARARGS,
     "encode(block, element, tokens, source, base, sibling, sibling_digest, prediction, row, first, limit, variant) "
     "-> bytearray?"},
    {"fit", fit, METH_VARARGS, "fit(kind, block, base, sibling, row, first) -> bytes?: a prediction"},
    {"decode", decode, METH_VARARGS, "decode(payload, out, base, sibling, variant) -> status, 0 when all is well"},
    {"variants", variants, METH_NOARGS, "Names of the variants that run here, the best first."},
    {NULL, NULL, 0, NULL},
};

/* Counted up when arguments or payloads change: kernel.py refuses a module that was built before. */
enum { FACE = 3 };

static int set_up(PyObject *self) { return PyModule_AddIntConstant(self, "FACE", FACE); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)set_up}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernel", "The float kernel (cas/spec/codecs.md, Kernel payload).", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    kernel_prepare();
    return PyModuleDef_Init(&module);
}
