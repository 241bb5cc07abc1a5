//! Integer kernels in Rust for nvptx64, without the core library (no prebuilt one is needed):
//!
//!     RUSTC_BOOTSTRAP=1 rustc --target nvptx64-nvidia-cuda -C opt-level=2 -C target-cpu=sm_70 \
//!         --crate-type=rlib --emit=asm -o rustc/rustc1.95-O2.ptx kernels.rs
#![feature(auto_traits, no_core, lang_items, abi_ptx, intrinsics, rustc_attrs, link_llvm_intrinsics)]
#![allow(internal_features)]
#![no_core]

#[lang = "pointee_sized"]
trait PointeeSized {}
#[lang = "meta_sized"]
trait MetaSized: PointeeSized {}
#[lang = "sized"]
trait Sized: MetaSized {}
#[lang = "copy"]
trait Copy {}
#[lang = "freeze"]
unsafe auto trait Freeze {}
#[lang = "legacy_receiver"]
trait LegacyReceiver {}
impl<T: PointeeSized> LegacyReceiver for &T {}
impl Copy for i32 {}
impl Copy for u32 {}
impl Copy for i64 {}
impl Copy for usize {}
impl Copy for bool {}
impl<T: PointeeSized> Copy for *const T {}
impl<T: PointeeSized> Copy for *mut T {}

#[rustc_intrinsic]
fn wrapping_add<T: Copy>(a: T, b: T) -> T;
#[rustc_intrinsic]
fn wrapping_sub<T: Copy>(a: T, b: T) -> T;
#[rustc_intrinsic]
fn wrapping_mul<T: Copy>(a: T, b: T) -> T;
#[rustc_intrinsic]
unsafe fn unchecked_div<T: Copy>(a: T, b: T) -> T;
#[rustc_intrinsic]
unsafe fn unchecked_shr<T: Copy, U: Copy>(a: T, b: U) -> T;
#[rustc_intrinsic]
unsafe fn arith_offset<T>(p: *const T, n: isize) -> *const T;
#[rustc_intrinsic]
unsafe fn transmute<Src, Dst>(src: Src) -> Dst;
#[rustc_intrinsic]
unsafe fn unchecked_shl<T: Copy, U: Copy>(a: T, b: U) -> T;

extern "C" {
    #[link_name = "llvm.nvvm.read.ptx.sreg.tid.x"]
    fn thread() -> i32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ctaid.x"]
    fn block() -> i32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ntid.x"]
    fn block_size() -> i32;
}

#[lang = "eq"]
trait PartialEq<Rhs: PointeeSized = Self>: PointeeSized {
    fn eq(&self, other: &Rhs) -> bool;
    fn ne(&self, other: &Rhs) -> bool;
}
impl PartialEq for i32 {
    fn eq(&self, other: &i32) -> bool { *self == *other }
    fn ne(&self, other: &i32) -> bool { *self != *other }
}
#[lang = "partial_ord"]
trait PartialOrd<Rhs: PointeeSized = Self>: PointeeSized {
    fn lt(&self, other: &Rhs) -> bool;
    fn le(&self, other: &Rhs) -> bool;
    fn gt(&self, other: &Rhs) -> bool;
    fn ge(&self, other: &Rhs) -> bool;
}
impl PartialOrd for i32 {
    fn lt(&self, other: &i32) -> bool { *self < *other }
    fn le(&self, other: &i32) -> bool { *self <= *other }
    fn gt(&self, other: &i32) -> bool { *self > *other }
    fn ge(&self, other: &i32) -> bool { *self >= *other }
}

unsafe fn at(p: *mut i32, i: i32) -> *mut i32 {
    transmute(arith_offset(p as *const i32, i as isize))
}

/// out[i] = a[i] * b[i] + rotate(a[i], 5) - b[i] / 7 + high word of the 64-bit product
#[no_mangle]
pub unsafe extern "ptx-kernel" fn rust_mix(a: *mut i32, b: *mut i32, out: *mut i32, n: i32) {
    let i = wrapping_add(wrapping_mul(block(), block_size()), thread());
    if i >= n {
        return;
    }
    let x = *at(a, i);
    let y = *at(b, i);
    let wide = wrapping_mul(x as i64, y as i64);
    let high = unchecked_shr::<i64, u32>(wide, 32) as i32;
    let u = x as u32;
    let up = unchecked_shl::<u32, u32>(u, 5);
    let turned = wrapping_add(up, unchecked_shr::<u32, u32>(u, 27)) as i32;
    let sum = wrapping_add(wrapping_mul(x, y), turned);
    *at(out, i) = wrapping_add(wrapping_sub(sum, unchecked_div(y, 7)), high);
}

/// The greatest common divisor of each pair, by subtraction.
#[no_mangle]
pub unsafe extern "ptx-kernel" fn rust_gcd(a: *mut i32, b: *mut i32) {
    let t = thread();
    let mut x = *at(a, t);
    let mut y = *at(b, t);
    while x != y {
        if x > y {
            x = wrapping_sub(x, y);
        } else {
            y = wrapping_sub(y, x);
        }
    }
    *at(a, t) = x;
}
