// Hello from Rust: causal attention on three tokens through the C interface, and the library's sentence where it refuses.
// SPDX-License-Identifier: Apache-2.0
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_void};
use std::ptr;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: [i32; 2], // kind, number
    ndim: i32,
    dtype: Dtype,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct Dtype {
    code: u8,
    bits: u8,
    lanes: u16,
}

// The first fields of hw_attention_args: what a caller's struct lacks is 0.
#[repr(C)]
struct AttentionArgs {
    struct_size: u32,
    q: *const Tensor,
    k: *const Tensor,
    v: *const Tensor,
    out: *const Tensor,
    lse: *const Tensor,
    mask: *const c_void,
}

#[link(name = "headwise")]
extern "C" {
    fn hw_last_error() -> *const c_char;
    fn hw_context_create(options: *const c_void, context: *mut *mut c_void) -> i32;
    fn hw_context_destroy(context: *mut c_void);
    fn hw_mask_parse(text: *const c_char, mask: *mut *mut c_void) -> i32;
    fn hw_mask_destroy(mask: *mut c_void);
    fn hw_attention(context: *mut c_void, args: *const AttentionArgs) -> i32;
}

fn checked(status: i32) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(unsafe { CStr::from_ptr(hw_last_error()) }.to_string_lossy().into_owned()),
    }
}

/// A context is used by one thread at a time, as the type says by itself: it holds a raw pointer.
struct Context(*mut c_void);

impl Context {
    fn new() -> Result<Context, String> {
        let mut made = ptr::null_mut();
        checked(unsafe { hw_context_create(ptr::null(), &mut made) })?;
        Ok(Context(made))
    }

    /// q, k and v are [batch tokens heads dim], packed.
    fn attention(&self, q: &[f32], k: &[f32], v: &[f32], shape: &[i64; 4], mask: &str) -> Result<Vec<f32>, String> {
        let count: i64 = shape.iter().product();
        if [q, k, v].iter().any(|x| x.len() as i64 != count) {
            return Err(format!("attention: the shape {shape:?} needs {count} numbers in q, k and v; give as many"));
        }
        let mut out = vec![0f32; q.len()];
        let tensor = |data: *const f32| Tensor {
            data: data as *mut c_void,
            device: [1, 0],
            ndim: 4,
            dtype: Dtype { code: 2, bits: 32, lanes: 1 },
            shape: shape.as_ptr(),
            strides: ptr::null(),
            byte_offset: 0,
        };
        let (tq, tk, tv) = (tensor(q.as_ptr()), tensor(k.as_ptr()), tensor(v.as_ptr()));
        let to = tensor(out.as_mut_ptr());
        let text = CString::new(mask).map_err(|_| "mask: it holds a zero byte; give a text without".to_string())?;
        let mut made = ptr::null_mut();
        checked(unsafe { hw_mask_parse(text.as_ptr(), &mut made) })?;
        let args = AttentionArgs {
            struct_size: std::mem::size_of::<AttentionArgs>() as u32,
            q: &tq,
            k: &tk,
            v: &tv,
            out: &to,
            lse: ptr::null(),
            mask: made,
        };
        let done = checked(unsafe { hw_attention(self.0, &args) });
        unsafe { hw_mask_destroy(made) };
        done.map(|()| out)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        unsafe { hw_context_destroy(self.0) }
    }
}

fn main() -> Result<(), String> {
    let (q, k, v) = ([1., 0., 0., 1., 1., 1.], [1., 0., 0., 1., 1., 1.], [1., 2., 3., 4., 5., 6.]);
    let context = Context::new()?;
    let out = context.attention(&q, &k, &v, &[1, 3, 1, 2], "causal")?;
    for (t, row) in out.chunks(2).enumerate() {
        println!("token {t}: {:.3} {:.3}", row[0], row[1]);
    }
    println!("{}", context.attention(&q, &k, &v, &[1, 3, 1, 2], "causal & no").unwrap_err());
    Ok(())
}
