//! Tests of the detector: its core in scenarios and at random, and whole processes over a scripted network on
//! paused time.

mod hand_over;
mod network;
mod processes;
mod properties;
mod scenarios;
