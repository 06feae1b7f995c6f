//! What a reader costs: memory, stack and CPU time of one case, each on a thread of its own, and the judgement over growing
//! inputs. Counts per thread, so that tests beside each other do not meet. Never judges a time by itself, only its growth.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

pub const KIB: usize = 1024;
pub const MIB: usize = 1024 * KIB;
/// Each is sixteen times the one before. What is not linear shows at a size at which it still ends.
const SIZES: [usize; 4] = [4 * KIB, 64 * KIB, MIB, 16 * MIB];
pub const LARGEST: usize = 16 * MIB;

/// No reader may need more. The loop has 8 MiB; the deepest that any parser here goes is 128 values within each other.
const STACK_MAX: usize = 192 * KIB;
/// Of the thread that a case runs on.
const STACK: usize = 1024 * KIB;
/// What is not counted: below this the stack is in use before the case begins.
const STACK_MARGIN: usize = 4 * KIB;
/// What any case may take whatever its input: buffers that are kept, tables.
const MEMORY_FREE: usize = 2 * MIB;
/// Sixteen times the input may take so many times the steps. A quadratic reader takes 256 times.
const GROWTH_MAX: u32 = 16 * 4;
/// A case that is quicker than this is not judged by its time: a cold cache is more than all of it.
const TIME_FREE: Duration = Duration::from_millis(40);
/// How often a time that grew too much is taken again. Others use this machine; the smallest is nearest to the truth.
const TRIES: usize = 5;

// --- memory -----------------------------------------------------------------------------------------------------------

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

#[derive(Clone, Copy, Default)]
struct Taken {
    now: isize,
    peak: isize,
    /// All that was ever taken: also what a buffer had that has grown since.
    ever: usize,
}

thread_local! {
    static TAKEN: Cell<Taken> = const { Cell::new(Taken { now: 0, peak: 0, ever: 0 }) };
}

fn count(bytes: isize) {
    // A thread that ends has no counter any more.
    _ = TAKEN.try_with(|taken| {
        let mut t = taken.get();
        t.now += bytes;
        t.peak = t.peak.max(t.now);
        t.ever += bytes.max(0).cast_unsigned();
        taken.set(t);
    });
}

// SAFETY: everything is handed to the system's allocator as it came; the counter has neither a destructor nor memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's word.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller's word.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: the caller's word.
        unsafe { System.realloc(at, layout, size) }
    }
}

// --- stack ------------------------------------------------------------------------------------------------------------

const PAINT: u64 = 0x5afe_57ac_5afe_57ac;

/// The lowest address of this thread's stack.
fn stack_floor() -> usize {
    // SAFETY: the attributes are filled by the first call, read by the second and freed by the last.
    unsafe {
        let mut attributes = std::mem::zeroed();
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes), 0);
        let (mut floor, mut size) = (std::ptr::null_mut(), 0);
        assert_eq!(libc::pthread_attr_getstack(&raw const attributes, &raw mut floor, &raw mut size), 0);
        libc::pthread_attr_destroy(&raw mut attributes);
        floor as usize
    }
}

/// Paints what is below, runs `case`, and gives how far down the paint is gone.
#[inline(never)]
fn deepest(case: impl FnOnce()) -> usize {
    let mark = 0u8;
    let top = (&raw const mark) as usize - STACK_MARGIN;
    // A guard page may be counted as part of the stack.
    let floor = (stack_floor() + 16 * KIB).next_multiple_of(8);
    for at in (floor..top - 8).step_by(8) {
        // SAFETY: this thread's own stack, below everything that is in use on it.
        unsafe { std::ptr::with_exposed_provenance_mut::<u64>(at).write_volatile(PAINT) };
    }
    case();
    let touched = (floor..top - 8)
        .step_by(8)
        // SAFETY: as above.
        .find(|at| unsafe { std::ptr::with_exposed_provenance::<u64>(*at).read_volatile() } != PAINT);
    touched.map_or(0, |at| top - at)
}

// --- one run ----------------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug)]
struct Cost {
    peak: usize,
    ever: usize,
    stack: usize,
    time: Duration,
}

fn cpu_time() -> Duration {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has one");
    Duration::from(now)
}

fn run(name: &str, case: &(dyn Fn(&[u8]) + Sync), input: &[u8]) -> Cost {
    let measured = || {
        let began = TAKEN.replace(Taken::default());
        let before = cpu_time();
        let stack = deepest(|| case(input));
        let time = cpu_time() - before;
        let taken = TAKEN.replace(began);
        Cost { peak: taken.peak.cast_unsigned(), ever: taken.ever, stack, time }
    };
    // Named for the case: whoever overflows this stack is told by name.
    let thread = std::thread::Builder::new().name(name.to_string()).stack_size(STACK);
    std::thread::scope(|scope| thread.spawn_scoped(scope, measured).expect("a thread").join())
        .unwrap_or_else(|_| panic!("{name} panics with {} bytes", input.len()))
}

// --- the judgement ----------------------------------------------------------------------------------------------------

/// A reader, and how much it may take for each byte of its input.
pub struct Reader<'r> {
    pub name: &'r str,
    /// Bytes of memory at once. 2 is a copy that grew by doubling.
    pub memory: usize,
    pub largest: usize,
    pub read: &'r (dyn Fn(&[u8]) + Sync),
}

impl<'r> Reader<'r> {
    pub fn new(name: &'r str, memory: usize, read: &'r (dyn Fn(&[u8]) + Sync)) -> Reader<'r> {
        Reader { name, memory, largest: LARGEST, read }
    }

    /// For those that are fed byte by byte: sixteen million calls would be all that is measured.
    pub fn up_to(self, largest: usize) -> Reader<'r> {
        Reader { largest, ..self }
    }

    /// Of `make`, inputs of about the sizes asked for.
    pub fn judge(&self, what: &str, make: impl Fn(usize) -> Vec<u8>) {
        let name = format!("{} of {what}", self.name);
        let mut before: Option<Cost> = None;
        for size in SIZES.into_iter().filter(|size| *size <= self.largest) {
            let input = make(size);
            let mut cost = run(&name, self.read, &input);
            assert!(cost.stack < STACK_MAX, "{name}: {} KiB of stack for {size} bytes", cost.stack / KIB);
            let allowed = self.memory * input.len() + MEMORY_FREE;
            assert!(cost.peak <= allowed, "{name}: {} KiB of memory for {size} bytes", cost.peak / KIB);
            // What is copied over and over is not held at once, but it is work.
            let allowed = 8 * self.memory.max(2) * input.len() + 8 * MEMORY_FREE;
            assert!(cost.ever <= allowed, "{name}: {} KiB of memory in all for {size} bytes", cost.ever / KIB);
            if let Some(smaller) = before {
                let allowed = smaller.time.max(Duration::from_micros(1)) * GROWTH_MAX + TIME_FREE;
                for _ in 0..TRIES {
                    if cost.time <= allowed {
                        break;
                    }
                    cost.time = cost.time.min(run(&name, self.read, &input).time);
                }
                let (was, is) = (smaller.time, cost.time);
                assert!(is <= allowed, "{name}: {is:?} for {size} bytes, and {was:?} for a sixteenth of it");
            }
            if std::env::var_os("HOSTILE_BYTES_SHOW").is_some() {
                let (peak, ever, stack) = (cost.peak as f64 / size as f64, cost.ever as f64 / size as f64, cost.stack);
                println!("{size:>9} {peak:>7.2} {ever:>7.2} {stack:>7} {:>10.3?} {name}", cost.time);
            }
            before = Some(cost);
        }
    }
}
