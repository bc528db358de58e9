# Read by each Ruby that a check starts: tells of its end, of the tests of RSpec and Minitest, and of methods that the
# tree replaced. Lines as in tightloop_observer.py.
module TightloopObserver
  PLACE, NONCE = ENV.fetch('TIGHTLOOP_OBSERVE', '').match(/\A(.*):(.*)\z/)&.captures
  ROOTS = ENV.fetch('TIGHTLOOP_TREE', '').split(File::PATH_SEPARATOR).map { |root| "#{root.chomp('/')}/" }
  PID = Process.pid
  OPEN = File.method(:open)

  class << self
    def tell(event, session = 'ruby', **fields)
      # A forked process is not the one that was observed.
      return if Process.pid != PID

      fields = { n: NONCE, e: event, pid: PID, s: "#{session}.#{PID}", **fields }
      text = fields.map { |key, value| "#{key.to_s.inspect}:#{quote(value)}" }.join(',')
      OPEN.call(PLACE, 'a', 0o600) { |file| file.syswrite("{#{text}}\n") }
    rescue SystemCallError
      nil # Nothing is told, so that the report is missing.
    end

    def path_in_tree(name)
      root = ROOTS.find { |one| name&.start_with?(one) }
      path = root && name.delete_prefix(root)
      path unless path.nil? || path.match?(%r{(?:\A|/)(?:vendor/bundle|\.bundle|gems)/})
    end

    # Notes the methods that exist before the tree is loaded.
    def remember
      @methods ||= ObjectSpace.each_object(Module).to_h do |owner|
        [owner, owner.instance_methods(false) + owner.private_instance_methods(false)]
      rescue StandardError
        [owner, []]
      end
    end

    def tell_replaced
      (@methods || {}).each do |owner, names|
        names.each do |name|
          path = owner.method_defined?(name, false) || owner.private_method_defined?(name, false) ? location(owner, name) : nil
          tell('patch', by: path, file: "#{owner}##{name}") if path
        end
      end
    end

    private

    # Without the library for JSON, which a test may want to load itself.
    def quote(value)
      case value
      when Integer, true, false then value.to_s
      when Array then "[#{value.map { |one| quote(one) }.join(',')}]"
      else
        text = value.to_s.dup.force_encoding('UTF-8').scrub('?')
        "\"#{text.gsub(/["\\\u0000-\u001f]/) { |one| format('\\u%04x', one.ord) }}\""
      end
    end

    def location(owner, name)
      path_in_tree(owner.instance_method(name).source_location&.first)
    rescue StandardError
      nil
    end
  end

  # Tells of the examples of RSpec.
  class Examples
    def start(_notification)
      TightloopObserver.tell('session', 'rspec', k: 'rspec')
    end

    %w[passed failed pending].each do |word|
      result = word == 'pending' ? 'skipped' : word
      define_method("example_#{word}") do |notification|
        example = notification.example
        name = "#{example.metadata[:file_path].delete_prefix('./')} > #{example.full_description}"
        TightloopObserver.tell('test', 'rspec', id: name, r: result)
      end
    end

    def stop(_notification)
      TightloopObserver.tell('finish', 'rspec')
    end
  end

  # Tells of the tests of Minitest.
  class Tests
    def start
      TightloopObserver.tell('session', 'minitest', k: 'minitest')
    end

    def prerecord(*); end

    def record(test)
      result = test.skipped? ? 'skipped' : test.passed? ? 'passed' : 'failed'
      TightloopObserver.tell('test', 'minitest', id: "#{test.klass}##{test.name}", r: result)
    end

    def report
      TightloopObserver.tell('finish', 'minitest')
    end

    def passed?
      true
    end
  end

  # Joins a runner once its file is loaded, and notes the methods of libraries that are loaded later.
  def self.watch_runners
    trace = TracePoint.new(:end) do |point|
      owner = point.self
      @methods[owner] = (@methods[owner] || []) | owner.instance_methods(false) if @methods && !path_in_tree(point.path)
      if point.self.name == 'RSpec' && point.path.end_with?('/rspec/core.rb')
        remember
        words = %i[start example_passed example_failed example_pending stop]
        RSpec.configuration.formatter_loader.reporter.register_listener(Examples.new, *words)
      elsif point.self.name == 'Minitest' && point.path.end_with?('/minitest.rb')
        remember
        Minitest.extensions << 'tightloop' unless Minitest.extensions.include?('tightloop')
        Minitest.define_singleton_method(:plugin_tightloop_init) { |_options| Minitest.reporter << Tests.new }
      end
    end
    trace.enable
  end

  # Registered first, so it runs last. A Ruby that is killed, or leaves by `exit!`, is known by the missing end.
  def self.begin
    return if PLACE.nil? || ROOTS.empty?

    tell('start', ppid: Process.ppid, cwd: Dir.pwd, argv: ['ruby', $PROGRAM_NAME, *ARGV].first(6))
    at_exit do
      tell_replaced
      tell('end')
    end
    watch_runners
  end
end

TightloopObserver.begin
