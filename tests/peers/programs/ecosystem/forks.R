# Forks of a heap of 80 MB.
values <- as.numeric(1:1e7)
parts <- parallel::mclapply(1:4, function(i) sum(values[((i - 1) * 25000 + 1):(i * 25000)]), mc.cores = 2)
more <- parallel::mclapply(1:2, function(i) { values[i] <- -1; length(values) / 1000 }, mc.cores = 2)
cat(format(Reduce(`+`, parts), scientific = FALSE), format(Reduce(`+`, more), scientific = FALSE))
cat("\n")
