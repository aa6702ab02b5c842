//! Memory for the table: zeroed, and on huge pages where it is in use and the system has them.
//!
//! A random look into tens of megabytes misses the translation cache as well as the data caches;
//! with pages of 2 MiB it misses only the latter. Asking for them is advice, and must come before
//! the first touch: hence a mapping of our own and not the allocator's, which would zero it. It
//! comes not sooner than the part is used as a whole, or a few keys would take all of the memory.
//! Where the advice is not taken, nothing but time is lost.

use std::ops::Deref;
use std::ptr::NonNull;

/// A slice of zeroed values that stays where it is.
pub(crate) struct Pages<T> {
    values: NonNull<T>,
    len: usize,
    /// Unmapped when dropped.
    mapping: Mapping,
}

/// Types for which all bits zero is a value, and that need no drop.
///
/// # Safety
///
/// The implementer promises just that.
pub(crate) unsafe trait Zeroable {}

#[cfg(unix)]
const HUGE: usize = 2 << 20;

impl<T: Zeroable> Pages<T> {
    /// `len` zeroed values.
    ///
    /// # Panics
    ///
    /// If the system has no memory for them.
    pub(crate) fn zeroed(len: usize) -> Self {
        const { assert!(align_of::<T>() <= 64, "memory from the allocator is aligned to 64") };
        let bytes = len.checked_mul(size_of::<T>()).expect("a table fits into the address space");
        let mapping = Mapping::zeroed(bytes);
        Self { values: mapping.huge_start().cast(), len, mapping }
    }

    /// Asks for huge pages for the first `len` values, of which the first `used` are in use.
    pub(crate) fn advise_huge(&self, used: usize, len: usize) {
        let bytes = |len: usize| len.min(self.len) * size_of::<T>();
        self.mapping.advise_huge(bytes(used), bytes(len));
    }
}

impl<T> Deref for Pages<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `values` points to `len` values, zeroed and so valid, aligned to a cache line
        // at least, that live as long as the mapping.
        unsafe { std::slice::from_raw_parts(self.values.as_ptr(), self.len) }
    }
}

// SAFETY: the memory is owned, and shared only as `&[T]`.
unsafe impl<T: Send> Send for Pages<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Pages<T> {}

/// Pages from the system, with room to align them.
#[cfg(unix)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

#[cfg(unix)]
impl Mapping {
    fn zeroed(bytes: usize) -> Self {
        let bytes = bytes.checked_add(HUGE).expect("a table fits into the address space");
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        assert!(start != libc::MAP_FAILED, "no memory for a table of {bytes} bytes");
        let start = NonNull::new(start.cast()).expect("a mapping is not at address zero");
        Self { start, bytes }
    }

    #[cfg_attr(
        not(target_os = "linux"),
        allow(unused_variables, reason = "there is no such advice")
    )]
    fn advise_huge(&self, used: usize, bytes: usize) {
        // Where the operator has turned huge pages off, gathering would make them all the same.
        #[cfg(target_os = "linux")]
        if are_huge_pages_off() {
            return;
        }
        #[cfg(target_os = "linux")]
        // SAFETY: the range is ours, because the mapping is longer by 2 MiB than what it is used
        // for; the advice changes no byte of it. A refusal is no error.
        unsafe {
            let start = self.huge_start().as_ptr().cast();
            // The last page is begun: otherwise what is touched first of it would keep it small.
            let advised = if bytes < HUGE { 0 } else { bytes.next_multiple_of(HUGE) };
            libc::madvise(start, advised.min(self.huge_bytes()), libc::MADV_HUGEPAGE);
            // What was touched while the part was small is gathered into huge pages, once: all of
            // it is in use now. The kernel would do so by itself, in minutes.
            libc::madvise(start, used / HUGE * HUGE, libc::MADV_COLLAPSE);
        }
    }

    /// Bytes behind the first multiple of 2 MiB that fill whole ones.
    #[cfg(target_os = "linux")]
    fn huge_bytes(&self) -> usize {
        let skip = self.start.as_ptr().align_offset(HUGE);
        (self.bytes - skip) / HUGE * HUGE
    }

    /// The first multiple of 2 MiB within the mapping.
    fn huge_start(&self) -> NonNull<u8> {
        let skip = self.start.as_ptr().align_offset(HUGE);
        // SAFETY: the mapping is longer than 2 MiB, and the skip shorter.
        unsafe { self.start.add(skip) }
    }
}

#[cfg(target_os = "linux")]
fn are_huge_pages_off() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|setting| setting.contains("[never]"))
}

#[cfg(unix)]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `zeroed` with this length; whoever borrowed it borrowed the owner.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Memory from the allocator, where there are no pages to be had from the system.
#[cfg(not(unix))]
struct Mapping {
    start: NonNull<u8>,
    layout: std::alloc::Layout,
}

#[cfg(not(unix))]
impl Mapping {
    /// A cache line: no slot of a table needs more.
    const ALIGN: usize = 64;

    fn zeroed(bytes: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(bytes.max(1), Self::ALIGN);
        let layout = layout.expect("a table fits into the address space");
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start);
        Self { start: start.unwrap_or_else(|| std::alloc::handle_alloc_error(layout)), layout }
    }

    fn advise_huge(&self, _: usize, _: usize) {}

    const fn huge_start(&self) -> NonNull<u8> {
        self.start
    }
}

#[cfg(not(unix))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout; whoever borrowed it borrowed the owner.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}
