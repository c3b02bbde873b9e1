# A heap of some 100 MB, changed on both sides of forks.
values = (0...100_000).map { |i| "value #{i} " * 50 }
differ = 0
5.times do |round|
  child = fork do
    right = values[round] == "value #{round} " * 50 && values[-1] == "value 99999 " * 50
    values.each { |value| value.sub!("value", "child") }
    exit!(right ? 0 : 1)
  end
  values[round] << "of the parent"
  Process.wait(child)
  differ += 1 unless $?.success?
  values[round] = "value #{round} " * 50
end
differ += values.count { |value| value.start_with?("child") }
puts "5 children, #{differ} differ"
