//! The process beside the node that outlives it and kills what it must.
