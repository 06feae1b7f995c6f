//! The core under a virtual clock, with a fake kernel, a fake store and clients that do everything at the wrong time.
//! A shadow model knows what must be true: every question is answered once, an answer reaches the client that asked,
//! a server has one instance at most and never starts early, and in the end everything drains and what is stored
//! agrees with what is told. A failure prints the seed; `SIM_SEED=n cargo test --test sim` replays it.

mod sim {
    pub mod installs;
    pub mod kernel;
    pub mod pulls;
    pub mod shadow;
    pub mod store;
    pub mod world;
}

use sim::world::World;

const STEPS: usize = 1000;

/// Of a world in which packages are fetched, unless `SIM_SEEDS` says more.
const SEEDS_WITH_INSTALLS: u64 = 3_000;

fn seeds(usually: u64) -> std::ops::Range<u64> {
    match std::env::var("SIM_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("SIM_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..std::env::var("SIM_SEEDS").map_or(usually, |n| n.parse().expect("SIM_SEEDS is a number")),
    }
}

#[test]
fn whatever_happens_every_call_ends_once_and_everything_drains() {
    all_of(seeds(10_000), |seed| _ = World::new(seed).run(STEPS));
}

#[test]
fn whatever_happens_while_packages_are_fetched_every_call_ends_once_and_everything_drains() {
    all_of(seeds(SEEDS_WITH_INSTALLS), |seed| _ = World::with_installs(seed).run(STEPS));
}

/// So many worlds are lived through twice, unless `SIM_SEEDS` says more.
const SEEDS_HANDED_OVER: u64 = 200;

#[test]
fn nobody_notices_that_the_core_was_frozen_and_thawed() {
    for worlds in [World::new, World::with_installs] {
        all_of(seeds(SEEDS_HANDED_OVER), |seed| {
            let one_in = [5, 30, 200][seed as usize % 3];
            assert_eq!(
                worlds(seed).handing_over(one_in).run(STEPS),
                worlds(seed).run(STEPS),
                "something else came out"
            );
        });
    }
}

fn all_of(seeds: std::ops::Range<u64>, live: impl Fn(u64) + Copy + Send + std::panic::RefUnwindSafe) {
    let workers = std::thread::available_parallelism().map_or(2, usize::from) as u64;
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let seeds = seeds.clone();
            scope.spawn(move || {
                for seed in seeds.filter(|seed| seed % workers == worker) {
                    let run = std::panic::catch_unwind(|| live(seed));
                    if run.is_err() {
                        panic!("seed {seed} failed; SIM_SEED={seed} cargo test --test sim replays it");
                    }
                }
            });
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let trace = |seed| World::new(seed).run(500);
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}
